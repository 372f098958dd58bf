// SPDX-License-Identifier: MIT
#include "train/report/facts.h"

#include "train/report/curves.h"
#include "train/report/words.h"
#include "train/base/metric_names.h"
#include "train/base/numbers.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace octavo_train {
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

const Point* best_point(const Curve& curve, Better better) {
  const Point* out = nullptr;
  for (const Point& point : curve) {
    if (!std::isfinite(point.y)) continue;
    if (out == nullptr || (better == Better::lower ? point.y < out->y : point.y > out->y)) out = &point;
  }
  return out;
}

Fact metric_fact(const std::string& name, const Curve& curve, Better better) {
  const std::optional<double> last = last_value(curve);
  std::string note = last ? "" : "no evaluation";
  if (const Point* best = best_point(curve, better)) {
    const std::string word = better == Better::lower ? "lowest" : "highest";
    note = *last == best->y ? "its " + word
                            : word + ' ' + metric_value(name, best->y) + " at step " + grouped(best->x);
  }
  return {evaluation_label(name), metric_value(name, last), note, last, better, true};
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

std::optional<Fact> unigram_fact(const RunData& run) {
  const std::optional<double> entropy = number_in(run.start, "/unigram_entropy");
  if (!entropy) return std::nullopt;
  const std::optional<double> last = last_value(run.eval_loss);
  std::string note;
  if (last) {
    note = "evaluation is " + fixed(std::abs(*entropy - *last), 4) +
           (*last < *entropy ? " below it" : " above it");
  }
  return Fact{"Unigram entropy", fixed(entropy, 4), note};
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
  return {"Peak memory",
          bytes_text(run.host_peak),
          run.host_peak ? "of the process, in host memory" : "",
          run.host_peak,
          Better::lower,
          true};
}

Fact speed_fact(const RunData& run) {
  const std::optional<double> speed = median(run.throughput);
  return {rate_name(run), grouped(speed), speed ? "median" : "", speed, Better::higher, true};
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

// Returns the pauses of the last session, from its end record.
Fact pauses_fact(const RunData& run, const char* name, std::string_view path) {
  const std::optional<double> seconds = number_in(run.end, path), all = number_in(run.end, "/seconds");
  const bool known = seconds && all && *all > 0;
  return {name, duration_text(seconds), known ? percent_text(*seconds / *all) + " of the time" : ""};
}

Fact steps_fact(const RunData& run) {
  const std::optional<double> asked = number_in(run.start, "/steps");
  std::string note = asked ? "of " + grouped(asked) : "";
  if (run.units > 0) note += (note.empty() ? "" : "; ") + short_count(run.units) + ' ' + run.unit;
  return {"Steps", grouped(static_cast<double>(run.last_step)), note};
}

std::string batch_note(const RunData& run) {
  const std::optional<double> units = number_of(run.start, "batch_" + run.unit);
  return units ? grouped(units) + ' ' + run.unit + " a step" : "";
}

// Returns the task's description of its data: a text, or numbers of bytes.
std::optional<Fact> data_fact(const RunData& run) {
  if (const auto text = text_in(run.start, "/data")) return Fact{"Data", *text};
  const std::optional<double> train = number_in(run.start, "/train_bytes");
  if (!train) return std::nullopt;
  return Fact{"Data", bytes_text(train) + " to train",
              bytes_text(number_in(run.start, "/validation_bytes")) + " to evaluate"};
}

// Returns the number of ranks, if the run has ranks.
std::optional<Fact> ranks_fact(const RunData& run) {
  const std::optional<double> ranks = number_in(run.start, "/ranks");
  if (!ranks) return std::nullopt;
  return Fact{"Ranks", grouped(ranks), text_or_dash(run.start, "/parallel")};
}

std::optional<Fact> communication_fact(const RunData& run) {
  const std::optional<double> bytes = number_in(run.end, "/comm_bytes");
  const std::optional<double> seconds = number_in(run.end, "/comm_seconds"),
                              waited = number_in(run.end, "/comm_waited");
  if (!bytes) return std::nullopt;
  const bool timed = seconds && waited && *seconds > 0;
  return Fact{"Communication", bytes_text(bytes) + " a step",
              timed ? significant(1e3 * *seconds, 3) + " ms, of which " + percent_text(*waited / *seconds) +
                          " not hidden by other work"
                    : "",
              bytes, Better::lower};
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

std::vector<Fact> facts_of(const RunData& run) {
  const std::optional<double> params = number_in(run.start, "/params");
  const std::optional<double> overhead = number_in(run.end, "/overhead");
  std::vector<Fact> out;
  const auto add = [&](std::optional<Fact> fact) {
    if (fact) out.push_back(std::move(*fact));
  };
  if (!run.eval_loss.empty() || run.metrics.empty()) add(metric_fact("loss", run.eval_loss, Better::lower));
  for (const MetricCurve& metric : run.metrics)
    add(metric_fact(metric.name, metric.curve, metric.higher_is_better ? Better::higher : Better::lower));
  add(train_fact(run));
  add(speed_fact(run));
  add(time_fact(run));
  add(memory_fact(run));
  add(state_fact(run));
  add(Fact{"How it ended", ending_of(run).text, text_in(run.end, "/message").value_or("")});
  add(steps_fact(run));
  add(skipped_fact(run));
  add(unigram_fact(run));
  add(Fact{"Model", text_or_dash(run.start, "/model"), params ? grouped(params) + " parameters" : "",
           params});
  add(Fact{"Optimizer", text_or_dash(run.start, "/optimizer"), batch_note(run)});
  add(Fact{"Compute", text_or_dash(run.start, "/compute_dtype"),
           "master weights: " + text_or_dash(run.start, "/master_weights")});
  if (const auto fp8 = text_in(run.start, "/fp8")) add(Fact{"FP8", *fp8});
  add(Fact{"Device", text_or_dash(run.start, "/device")});
  add(ranks_fact(run));
  add(communication_fact(run));
  add(data_fact(run));
  add(Fact{"Trainer overhead", percent_text(overhead), overhead ? "beside forward, backward and step" : "",
           overhead, Better::lower});
  add(pauses_fact(run, "Evaluations", "/evaluation_seconds"));
  add(pauses_fact(run, "Checkpoints", "/checkpoint_seconds"));
  add(resumed_fact(run));
  add(Fact{"Began", date_text(run.began)});
  add(Fact{"Folder", run.path});
  return out;
}

std::vector<std::vector<Fact>> facts_of(std::span<const RunData> runs) {
  const auto unknown = [](const Fact& fact) {
    return Fact{fact.label, kUnknown, "", {}, fact.better, fact.headline};
  };
  const auto find = [](const std::vector<Fact>& facts, const Fact& wanted) {
    return std::ranges::find(facts, wanted.label, &Fact::label);
  };
  std::vector<std::vector<Fact>> out;
  std::vector<Fact> rows;
  for (const RunData& run : runs) {
    out.push_back(facts_of(run));
    std::ptrdiff_t place = 0;  // after the row of the previous fact
    for (const Fact& fact : out.back()) {
      auto at = find(rows, fact);
      if (at == rows.end()) at = rows.insert(rows.begin() + place, unknown(fact));
      place = at - rows.begin() + 1;
    }
  }
  for (std::vector<Fact>& facts : out) {
    std::vector<Fact> all;
    for (const Fact& row : rows) {
      const auto at = find(facts, row);
      all.push_back(at == facts.end() ? row : *at);
    }
    facts = std::move(all);
  }
  return out;
}

}  // namespace octavo_train
