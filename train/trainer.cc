// SPDX-License-Identifier: MIT
#include "trainer.h"

#include "evaluate.h"
#include "heartbeat.h"
#include "loop.h"
#include "resume.h"
#include "session.h"
#include "signals.h"
#include "terminal_text.h"
#include "train/files/text_file.h"
#include "train/report/report.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <memory>
#include <utility>

namespace octavo::train {
namespace {

// Lets the model write a text, for the console and the report.
Status show_sample(Session& session, std::int64_t step, Heartbeat& console) {
  const Settings& settings = session.settings;
  SampleOptions options;
  options.tokens = settings.training.sample_tokens;
  options.top_k = 3;
  const std::string prompt = "\n";
  console.doing("writing a sample");
  const std::string text =
      generate(*session.model, prompt, settings.data.block_size, options, session.device,
               settings.training.compute_dtype, [](char) { return StopSignals::received() == 0; });
  console.note("a sample:" + prompt + terminal_text(text));
  return session.log->write({{"kind", "sample"}, {"step", step}, {"prompt", prompt}, {"text", text}});
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
      if (session->settings.training.sample_tokens > 0) say(show_sample(*session, outcome->step, console));
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
