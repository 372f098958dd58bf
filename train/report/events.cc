// The events of the runs: samples, evaluations, stages, checkpoints, warnings. Only the last entries of a
// long list are shown, with the total number; metrics.jsonl has all entries.
// SPDX-License-Identifier: MIT
#include "train/report/sections.h"
#include "train/report/words.h"
#include "train/base/metric_names.h"
#include "train/base/numbers.h"

#include <cmath>
#include <numbers>

namespace octavo_train {
namespace {

constexpr std::size_t kMostRows = 200;
constexpr std::size_t kMostSamples = 8;
constexpr std::size_t kMostSampleBytes = 20000;

std::string step_text(const Record& record) { return grouped(number_in(record, "/step")); }

// Returns the last records, at most `most`. Sets `note` if records are omitted.
std::span<const Record> last_of(const std::vector<Record>& records, std::size_t most, std::string& note) {
  const std::size_t left_out = records.size() > most ? records.size() - most : 0;
  if (left_out > 0)
    note = element_of("p", "quiet",
                      "The last " + std::to_string(most) + " of " + std::to_string(records.size()) + ".") +
           "\n";
  return std::span(records).subspan(left_out);
}

// Returns a section with one table per run. `row` makes a table row of a record.
template <class Row>
std::string tables(std::span<const RunData> runs, std::string_view id, std::string_view heading,
                   std::vector<Record> RunData::*list, const std::vector<Cell>& head, Row row) {
  std::string out;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if ((runs[i].*list).empty()) continue;
    std::string note;
    HtmlTable table;
    table.head(head);
    for (const Record& record : last_of(runs[i].*list, kMostRows, note)) table.row(row(record));
    out += run_heading(runs, i) + note + table.html();
  }
  return section(id, heading, out);
}

std::string bits_text(std::optional<double> nats) {
  return fixed(nats ? std::optional(*nats / std::numbers::ln2) : std::nullopt, 4);
}

// Each metric besides the loss has its own column.
HtmlTable evaluations_table(const RunData& run, std::span<const Record> evaluations) {
  const auto number = [](std::string text) { return Cell{std::move(text), "", "num"}; };
  const std::string bits = entropy_unit(run, "bits");
  const bool loss = !run.eval_loss.empty() || run.metrics.empty();
  HtmlTable table;
  std::vector<Cell> head = {number("step")};
  if (loss) head.push_back(number("loss"));
  if (!bits.empty()) head.push_back(number(bits));
  for (const MetricCurve& metric : run.metrics) head.push_back(number(metric_label(metric.name)));
  for (const std::string& each : {run.unit, std::string("time"), std::string("stage")})
    head.push_back(number(each));
  table.head(std::move(head));
  for (const Record& record : evaluations) {
    std::vector<Cell> row = {number(step_text(record))};
    const auto value = number_in(record, "/loss");
    if (loss) row.push_back(number(fixed(value, 4)));
    if (!bits.empty()) row.push_back(number(bits_text(value)));
    for (const MetricCurve& metric : run.metrics)
      row.push_back(number(metric_value(metric.name, number_of(record, metric.name))));
    row.push_back(number(grouped(number_of(record, run.unit))));
    row.push_back(number(duration_text(number_in(record, "/seconds"))));
    row.push_back(number(grouped(number_in(record, "/stage"))));
    table.row(std::move(row));
  }
  return table;
}

std::string evaluations_html(std::span<const RunData> runs) {
  std::string out;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].evaluations.empty()) continue;
    std::string note;
    const auto last = last_of(runs[i].evaluations, kMostRows, note);
    out += run_heading(runs, i) + note + evaluations_table(runs[i], last).html();
  }
  return section("evaluations", "Evaluations", out);
}

std::string sample_html(const Record& sample) {
  const std::string prompt = text_in(sample, "/prompt").value_or("");
  std::string text = text_in(sample, "/text").value_or("");
  if (text.starts_with(prompt)) text.erase(0, prompt.size());
  if (text.size() > kMostSampleBytes) {
    std::size_t end = kMostSampleBytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
      --end;  // not inside a character
    text = text.substr(0, end) + "…";
  }
  return element("figure", "sample",
                 element("figcaption", "", "step " + step_text(sample)) +
                     element("pre", "", element_of("b", "", prompt) + escaped(text))) +
         "\n";
}

}  // namespace

std::string samples_html(std::span<const RunData> runs) {
  std::string out;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].samples.empty()) continue;
    std::string note, samples;
    for (const Record& sample : last_of(runs[i].samples, kMostSamples, note)) samples += sample_html(sample);
    out += run_heading(runs, i) + note + element("div", "samples", "\n" + samples) + "\n";
  }
  return section("samples", "Samples", out);
}

std::string events_html(std::span<const RunData> runs) {
  const Cell step{"step", "", "num"};
  const auto message = [](const Record& record) {
    return std::vector<Cell>{{step_text(record), "", "num"},
                             {text_in(record, "/message").value_or(kUnknown)}};
  };
  std::string out = tables(runs, "warnings", "Warnings", &RunData::warnings, {step, {"message"}}, message);
  out +=
      tables(runs, "changes", "Changed when the run went on", &RunData::changes, {step, {"change"}}, message);
  out += evaluations_html(runs);
  out += tables(runs, "stages", "Stages", &RunData::stages,
                {step, {"stage", "", "num"}, {"samples", "", "num"}}, [](const Record& record) {
                  const auto samples = number_in(record, "/samples");
                  return std::vector<Cell>{{step_text(record), "", "num"},
                                           {grouped(number_in(record, "/stage")), "", "num"},
                                           {samples == -1.0 ? "all" : grouped(samples), "", "num"}};
                });
  out += tables(runs, "checkpoints", "Checkpoints", &RunData::checkpoints,
                {step, {"folder"}, {"size", "", "num"}, {"time", "", "num"}}, [](const Record& record) {
                  return std::vector<Cell>{{step_text(record), "", "num"},
                                           {text_in(record, "/path").value_or(kUnknown), "", "code"},
                                           {bytes_text(number_in(record, "/bytes")), "", "num"},
                                           {duration_text(number_in(record, "/seconds")), "", "num"}};
                });
  return out;
}

}  // namespace octavo_train
