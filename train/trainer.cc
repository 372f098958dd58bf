// SPDX-License-Identifier: MIT
#include "trainer.h"

#include "evaluate.h"
#include "loop.h"
#include "session.h"
#include "signals.h"
#include "train/files/text_file.h"
#include "train/report/report.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <new>

namespace octavo::train {
namespace {

constexpr std::int64_t kSampleTokens = 300;

// The CPU's allocator has no error of its own.
bool is_out_of_memory(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  return std::string(error.what_without_backtrace()).find("can't allocate memory") != std::string::npos;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Torch's own words on a full device, without its advice: ours follows.
std::string request_of(const std::string& text) {
  return text.substr(0, text.find(" Including non-PyTorch"));
}

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
Status show_sample(Session& session, std::int64_t step, Console& console) {
  const Settings& settings = session.settings;
  SampleOptions options;
  options.tokens = kSampleTokens;
  options.top_k = 3;
  const std::string prompt = "\n";
  const std::string text = generate(*session.model, prompt, settings.data.block_size, options, session.device,
                                    settings.training.compute_dtype);
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

}  // namespace

Result<Outcome> train(const Config& config, Console& console) {
  const StopSignals signals;
  std::unique_ptr<Session> session;
  std::optional<Loop> loop;
  try {
    auto opened = open_session(config, console);
    if (!opened.ok()) return opened.status();
    session = std::move(*opened);
    if (session->state.step >= session->steps()) {
      console.note("nothing to do: " + session->resumed_from + " is at step " +
                   std::to_string(session->state.step) + " of " + std::to_string(session->steps()) +
                   "; raise max_steps to go on");
    }
    loop.emplace(*session, console);
    auto outcome = loop->run();
    if (outcome.ok() && outcome->signal == 0) {
      if (loop->measured_memory()) {
        console.note("memory:");
        for (const std::string& line : memory_table(*loop->measured_memory())) console.note(line);
      }
      if (Status bad = show_sample(*session, outcome->step, console); !bad.ok()) return bad;
    }
    if (Status bad = session->log->flush(); !bad.ok()) return bad;
    auto report = write_report(session->settings.output_dir);
    if (!outcome.ok()) return outcome;
    if (!report.ok()) return report.status();
    outcome->report = *report;
    return outcome;
  } catch (const c10::Error& error) {
    const std::string what = first_line(error.what_without_backtrace());
    if (!is_out_of_memory(error)) return Status::failed("LibTorch: " + what);
    if (session == nullptr || !loop)
      return Status::failed("out of memory while the model was set up: " + what);
    return Status::failed(explain_out_of_memory(request_of(what), loop->memory_now(),
                                                device_memory(session->device), session->settings));
  } catch (const std::bad_alloc&) {
    return Status::failed("out of memory on the host");
  }
}

}  // namespace octavo::train
