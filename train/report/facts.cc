// SPDX-License-Identifier: MIT
#include "train/report/facts.h"

#include "train/format/numbers.h"
#include "train/report/curves.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace octavo::train {
namespace {

using Better = Fact::Better;

std::string text_or_dash(const Record& record, std::string_view path) {
  return text_in(record, path).value_or(kUnknown);
}

std::optional<double> last_value(const Curve& curve) {
  for (auto point = curve.rbegin(); point != curve.rend(); ++point) {
    if (std::isfinite(point->y)) return point->y;
  }
  return std::nullopt;
}

std::optional<double> median(const Curve& curve) {
  std::vector<double> values;
  for (const Point& point : curve) {
    if (std::isfinite(point.y)) values.push_back(point.y);
  }
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<double> mean(std::span<const Point> points) {
  double sum = 0, count = 0;
  for (const Point& point : points) {
    if (!std::isfinite(point.y)) continue;
    sum += point.y;
    count += 1;
  }
  return count > 0 ? std::optional(sum / count) : std::nullopt;
}

const Point* lowest(const Curve& curve) {
  const Point* out = nullptr;
  for (const Point& point : curve) {
    if (std::isfinite(point.y) && (out == nullptr || point.y < out->y)) out = &point;
  }
  return out;
}

Fact eval_fact(const RunData& run) {
  const std::optional<double> last = last_value(run.eval_loss);
  std::string note = last ? "" : "no evaluation";
  if (const Point* best = lowest(run.eval_loss)) {
    note = *last == best->y ? "its lowest" : "lowest " + fixed(best->y, 4) + " at step " + grouped(best->x);
  }
  return {"Evaluation loss", fixed(last, 4), note, last, Better::lower, true};
}

Fact train_fact(const RunData& run) {
  const std::size_t window = smoothing_window(run.train_loss);
  const std::size_t begin = run.train_loss.size() - std::min(window, run.train_loss.size());
  const std::optional<double> last = mean(std::span(run.train_loss).subspan(begin));
  const std::string note = !last        ? ""
                           : window > 1 ? "mean of the last " + std::to_string(window) + " records"
                                        : "";
  return {"Training loss", fixed(last, 4), note, last, Better::lower, true};
}

Fact unigram_fact(const RunData& run) {
  const std::optional<double> entropy = number_in(run.start, "/unigram_entropy");
  const std::optional<double> last = last_value(run.eval_loss);
  std::string note;
  if (entropy && last) {
    note = "evaluation is " + fixed(std::abs(*entropy - *last), 4) +
           (*last < *entropy ? " below it" : " above it");
  }
  return {"Unigram entropy", fixed(entropy, 4), note};
}

Fact state_fact(const RunData& run) {
  const std::optional<double> bytes = number_in(run.start, "/state_bytes");
  const std::optional<double> full = number_in(run.start, "/fp32_state_bytes");
  std::string note;
  if (bytes && full && *full > 0 && *bytes < *full) {
    note = "instead of " + bytes_text(full) + " in fp32 (" + percent_text(*bytes / *full) + ")";
  }
  return {"Optimizer states", bytes_text(bytes), note, bytes, Better::lower, true};
}

Fact memory_fact(const RunData& run) {
  if (run.device_peak) {
    const std::string note = run.host_peak ? "device; host " + bytes_text(run.host_peak) : "device";
    return {"Peak memory", bytes_text(run.device_peak), note, run.device_peak, Better::lower, true};
  }
  return {"Peak memory", bytes_text(run.host_peak), run.host_peak ? "host" : "", run.host_peak, Better::lower,
          true};
}

Fact speed_fact(const RunData& run) {
  const std::optional<double> speed = median(run.tokens_per_second);
  return {"Tokens per second", grouped(speed), speed ? "median" : "", speed, Better::higher, true};
}

Fact time_fact(const RunData& run) {
  const std::string note = run.sessions > 1 ? "in " + std::to_string(run.sessions) + " sessions" : "";
  return {"Time",
          duration_text(run.records > 1 ? std::optional(run.seconds) : std::nullopt),
          note,
          {},
          Better::neither,
          true};
}

// Of the last session, whose end has them.
Fact pauses_fact(const RunData& run, const char* name, std::string_view path) {
  const std::optional<double> seconds = number_in(run.end, path), all = number_in(run.end, "/seconds");
  const bool known = seconds && all && *all > 0;
  return {name, duration_text(seconds), known ? percent_text(*seconds / *all) + " of the time" : ""};
}

Fact steps_fact(const RunData& run) {
  const std::optional<double> asked = number_in(run.start, "/steps");
  std::string note = asked ? "of " + grouped(asked) : "";
  if (run.tokens > 0) note += (note.empty() ? "" : "; ") + short_count(run.tokens) + " tokens";
  return {"Steps", grouped(static_cast<double>(run.last_step)), note};
}

std::string batch_note(const RunData& run) {
  const std::optional<double> tokens = number_in(run.start, "/batch_tokens");
  return tokens ? grouped(tokens) + " tokens a step" : "";
}

Fact skipped_fact(const RunData& run) {
  return {"Skipped steps", grouped(run.skipped_steps),
          run.skipped_steps > 0 ? "their gradients were not finite" : "", run.skipped_steps, Better::lower};
}

Fact resumed_fact(const RunData& run) {
  const std::optional<double> step = number_in(run.start, "/resumed_from");
  const std::string text =
      text_in(run.start, "/resumed_from").value_or(step ? "step " + grouped(step) : "no");
  return {"Resumed from", text};
}

}  // namespace

Ending ending_of(const RunData& run) {
  const std::optional<std::string> reason = text_in(run.end, "/reason");
  if (!reason) return {"No end recorded: still running, or killed", "open"};
  if (*reason == "finished") return {"Finished", "good"};
  if (*reason == "interrupted") return {"Interrupted", "fair"};
  if (*reason == "diverged") return {"Diverged", "bad"};
  if (*reason == "failed") return {"Failed", "bad"};
  return {*reason, "fair"};
}

std::string subtitle_of(const RunData& run) {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : " · ") + part; };
  if (const auto model = text_in(run.start, "/model")) add(*model);
  if (const auto params = number_in(run.start, "/params")) add(short_count(params) + " parameters");
  if (const auto device = text_in(run.start, "/device")) add(*device);
  if (run.began) add("began " + date_text(run.began));
  if (const auto version = text_in(run.start, "/octavo")) add("octavo " + *version);
  return out;
}

std::vector<Fact> facts_of(const RunData& run) {
  const std::optional<double> params = number_in(run.start, "/params");
  const std::optional<double> overhead = number_in(run.end, "/overhead");
  return {eval_fact(run),
          train_fact(run),
          speed_fact(run),
          time_fact(run),
          memory_fact(run),
          state_fact(run),
          {"How it ended", ending_of(run).text, text_in(run.end, "/message").value_or("")},
          steps_fact(run),
          skipped_fact(run),
          unigram_fact(run),
          {"Model", text_or_dash(run.start, "/model"), params ? grouped(params) + " parameters" : "", params},
          {"Optimizer", text_or_dash(run.start, "/optimizer"), batch_note(run)},
          {"Compute", text_or_dash(run.start, "/compute_dtype"),
           "master weights: " + text_or_dash(run.start, "/master_weights")},
          {"Device", text_or_dash(run.start, "/device")},
          {"Data", bytes_text(number_in(run.start, "/train_bytes")) + " to train",
           bytes_text(number_in(run.start, "/validation_bytes")) + " to evaluate"},
          {"Trainer overhead", percent_text(overhead), overhead ? "beside forward, backward and step" : "",
           overhead, Better::lower},
          pauses_fact(run, "Evaluations", "/evaluation_seconds"),
          pauses_fact(run, "Checkpoints", "/checkpoint_seconds"),
          resumed_fact(run),
          {"Began", date_text(run.began)},
          {"Folder", run.path}};
}

}  // namespace octavo::train
