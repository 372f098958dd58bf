// SPDX-License-Identifier: MIT
#include "trainer.h"

#include "failure.h"
#include "heartbeat.h"
#include "loop.h"
#include "resume.h"
#include "session.h"
#include "signals.h"
#include "train/files/text_file.h"
#include "train/report/report.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <memory>
#include <utility>

namespace octavo::train {
namespace {

// Lets the model show something, for the console and the report.
Status show_preview(Session& session, std::int64_t step, Heartbeat& console) {
  console.doing("making a sample");
  const auto preview = session.task->preview(session.device, [] { return StopSignals::received() != 0; });
  if (!preview) return {};
  console.note(preview->title + ":" + preview->shown);
  nlohmann::ordered_json record = {{"kind", "sample"}, {"step", step}};
  for (const auto& [name, text] : preview->record) record[name] = text;
  return session.log->write(record);
}

Result<std::string> write_report(const std::string& run) {
  auto page = make_report(std::span(&run, 1));
  if (!page.ok()) return page.status();
  const std::string path = run + "/report.html";
  if (Status bad = write_text_file(path, *page); !bad.ok()) return bad;
  return path;
}

Result<Outcome> run_all(const Config& config, Heartbeat& console) {
  const StopSignals signals;
  console.doing("setting up: data, model and optimizer");
  std::unique_ptr<Session> session;
  try {
    auto opened = open_session(config, console);
    if (!opened.ok()) return opened.status();
    session = std::move(*opened);
  } catch (const c10::Error& error) {
    return Status::failed("the run could not be set up: " + error_text(error));
  } catch (const std::exception& error) {
    return status_of(error);
  }
  if (session->state.step >= session->steps()) {
    console.note(
        nothing_to_do(session->settings, session->resumed_from, session->state.step, session->steps()));
  }
  Loop loop(*session, console);
  auto outcome = loop.run();
  // By now the steps are saved or lost. Errors from here on are warnings.
  const auto say = [&](const Status& bad) {
    if (!bad.ok()) console.note("warning: " + bad.message());
  };
  // After a second Ctrl-C only the checkpoint is written.
  if (StopSignals::received_again()) {
    say(session->log->flush());
    return outcome;
  }
  try {
    if (outcome.ok() && outcome->signal == 0 && loop.steps_done() > 0) {
      if (loop.measured_memory()) {
        console.note("memory:");
        for (const std::string& line : memory_table(*loop.measured_memory())) console.note(line);
      }
      say(show_preview(*session, outcome->step, console));
    }
  } catch (const c10::Error& error) {
    say(Status::failed(std::string("no sample: ") + error.what_without_backtrace()));
  }
  console.doing("writing the report");
  say(session->log->flush());
  auto report = write_report(session->settings.output_dir);
  say(report.status());
  if (outcome.ok() && report.ok()) outcome->report = *report;
  return outcome;
}

}  // namespace

Result<Outcome> train(const Config& config, Console& console) {
  Heartbeat heartbeat(console);
  return run_all(config, heartbeat);
}

}  // namespace octavo::train
