// SPDX-License-Identifier: MIT
#include "trainer.h"

#include "evaluate.h"
#include "heartbeat.h"
#include "loop.h"
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

constexpr std::int64_t kSampleTokens = 300;

// Bytes of a model as a terminal can show them: no control characters, and U+FFFD for what is no UTF-8.
std::string shown(const std::string& bytes) {
  using nlohmann::json;
  std::string out =
      json::parse(json(bytes).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) c = '?';
  }
  return out;
}

// What the run has learnt, for the report and for the eye.
Status show_sample(Session& session, std::int64_t step, Heartbeat& console) {
  const Settings& settings = session.settings;
  SampleOptions options;
  options.tokens = kSampleTokens;
  options.top_k = 3;
  const std::string prompt = "\n";
  console.doing("writing a sample");
  const std::string text =
      generate(*session.model, prompt, settings.data.block_size, options, session.device,
               settings.training.compute_dtype, [](char) { return StopSignals::received() == 0; });
  console.note("a sample:" + prompt + shown(text));
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
    console.note("nothing to do: " + session->resumed_from + " is at step " +
                 std::to_string(session->state.step) + " of " + std::to_string(session->steps()) +
                 "; raise max_steps to go on");
  }
  Loop loop(*session, console);
  auto outcome = loop.run();
  // Whatever happened, the steps are saved or lost by now: what fails below is only said.
  const auto say = [&](const Status& bad) {
    if (!bad.ok()) console.note("warning: " + bad.message());
  };
  try {
    if (outcome.ok() && outcome->signal == 0 && loop.steps_done() > 0) {
      if (loop.measured_memory()) {
        console.note("memory:");
        for (const std::string& line : memory_table(*loop.measured_memory())) console.note(line);
      }
      say(show_sample(*session, outcome->step, console));
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
