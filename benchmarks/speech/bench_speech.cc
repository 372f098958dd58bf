// Implements `octavo bench speech`: measures one row for each requested combination, and prints the rows as
// tables or as JSON.
// SPDX-License-Identifier: MIT
#include "benchmarks/speech/commands.h"
#include "benchmarks/speech/step_profile.h"
#include "cli/cli.h"
#include "cli/hardware_json.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "train/base/numbers.h"
#include "train/config/config.h"
#include "train/device/device.h"
#include "train/device/memory.h"
#include "train/model/model.h"
#include "train/optim/fp8.h"
#include "train/optim/optimizer.h"
#include "train/tasks/speech/data/generator.h"
#include "train/tasks/speech/model/speech_model.h"

#include <torch/torch.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;
using octavo_train::SpeechMeasure;
using Cells = std::vector<std::string>;

struct Row {
  std::string optimizer, checkpointing;
  std::int64_t clips = 0;
  std::optional<SpeechMeasure> measure;
  std::string error;  // set if there is no measure
};

struct Bench {
  const SpeechBenchRequest& request;
  std::string device;
  std::int64_t parameters = 0;
  std::string weights;  // dtype of the weights
  std::vector<Row> rows;
};

octavo_train::TrainingSettings training_of(const SpeechBenchRequest& request, const std::string& optimizer) {
  const bool fp8 = request.fp8 != "off";
  const std::string words[] = {
      std::string("training.fp8.enabled=") + (fp8 ? "true" : "false"),
      "training.fp8.recipe=" + (fp8 ? request.fp8 : "delayed"),
      "training.fp8.select=" + request.fp8_select,
      "training.optimizer=" + optimizer,
      "training.compute_dtype=" + request.dtype,
      "training.master_weights=" + request.master,
      "training.device=" + request.device,
      "training.learning_rate=1e-4",
      "training.gradient_accumulation_steps=" + std::to_string(request.accumulation),
      "training.offload=" + request.offload,
      std::string("training.offload_gradients=") + (request.offload_gradients ? "true" : "false")};
  return take(octavo_train::parse("", "the command line", words)).settings.training;
}

// Keeps the model of the last row and reuses it if the next row allows it, because initializing the weights
// takes seconds.
class Models {
 public:
  explicit Models(const SpeechBenchRequest& request) : settings_(settings_of(request.model)) {}

  octavo_train::SpeechModelImpl& get(const std::string& checkpointing, const ::torch::Device& device,
                                     bool bf16) {
    if (model_.is_empty() || checkpointing != checkpointing_ || bf16 != bf16_) {
      drop();
      settings_.checkpoint_encoder = checkpointing == "on" || checkpointing == "encoder";
      settings_.checkpoint_decoder = checkpointing == "on" || checkpointing == "decoder";
      octavo_train::SpeechModel model(settings_);
      octavo_train::place_model(*model, device, bf16);
      model_ = model;
      checkpointing_ = checkpointing;
      bf16_ = bf16;
    }
    return *model_;
  }
  void drop() { model_ = octavo_train::SpeechModel(nullptr); }

 private:
  octavo_train::SpeechModelSettings settings_;
  octavo_train::SpeechModel model_{nullptr};
  std::string checkpointing_;
  bool bf16_ = false;
};

void measure_row(Bench& bench, Row& row, const ::torch::Device& device, Models& models) {
  const SpeechBenchRequest& request = bench.request;
  const octavo_train::TrainingSettings training = training_of(request, row.optimizer);
  check(octavo_train::check_backend(device));
  const bool bf16 = octavo_train::has_bf16_weights(training);
  const octavo_train::SpeechLoad load{row.clips,
                                      std::llround(octavo_train::kFramesPerSecond * request.seconds),
                                      request.tokens, request.steps};
  try {
    octavo_train::seed_random(training.seed, 0, 0);
    octavo_train::SpeechModelImpl& model = models.get(row.checkpointing, device, bf16);
    bench.parameters = 0;
    for (const ::torch::Tensor& each : model.parameters()) bench.parameters += each.numel();
    bench.weights = "float32";
    if (bf16)
      bench.weights =
          std::string("bfloat16, master ") + octavo_train::master_name(octavo_train::weight_store(training));
    take(octavo_train::choose_fp8(training.fp8, device));  // an error if FP8 is not supported
    row.measure = octavo_train::measure_step(model, load, training, device);
    model.zero_grad();
  } catch (const c10::OutOfMemoryError&) {
    row.error = "out of memory";
    models.drop();
  }
  octavo_train::release_cached_memory(device);
}

// A column of the table and a field of the JSON.
struct Bytes {
  const char* name;
  std::int64_t SpeechMeasure::*value;
};
constexpr std::array<Bytes, 7> kMemory = {{{"peak", &SpeechMeasure::peak},
                                           {"weights", &SpeechMeasure::weights},
                                           {"gradients", &SpeechMeasure::gradients},
                                           {"states", &SpeechMeasure::states},
                                           {"master", &SpeechMeasure::master},
                                           {"activations", &SpeechMeasure::activations},
                                           {"loss", &SpeechMeasure::loss_workspace}}};
constexpr Bytes kHost = {"host", &SpeechMeasure::host};

double hours_of(const Bench& bench, const SpeechMeasure& measure) {
  return static_cast<double>(bench.request.total_clips) / measure.clips_per_second / 3600;
}

std::string ms(double seconds) { return fixed(1e3 * seconds, 1); }

std::string key_of(std::string part) {
  for (char& c : part) c = c == ' ' ? '_' : c;
  return part + "_ms";
}

json row_json(const Bench& bench, const Row& row) {
  json out = {{"optimizer", row.optimizer}, {"checkpointing", row.checkpointing}, {"clips", row.clips}};
  if (!row.measure) {
    out["error"] = row.error;
    return out;
  }
  const SpeechMeasure& m = *row.measure;
  out["clips_per_second"] = m.clips_per_second;
  out["hours"] = hours_of(bench, m);
  out["step_ms"] = 1e3 * m.step_seconds;
  json parts;
  for (std::size_t i = 0; i < m.seconds.size(); ++i)
    parts[key_of(octavo_train::kStepParts.at(i))] = 1e3 * m.seconds.at(i);
  parts["rest_ms"] = 1e3 * m.rest();
  out["parts"] = parts;
  for (const Bytes& each : kMemory) out["memory"][each.name] = m.*each.value;
  out["memory"]["reserved"] = m.reserved;
  out["memory"][kHost.name] = m.host;
  if (m.fp8 > 0) out["fp8"] = {{"codes", m.fp8}, {"products", m.products}};
  out["loss"] = m.loss;
  out["skipped_steps"] = m.skipped;
  return out;
}

// Returns the columns that identify a row, followed by columns of numbers.
std::vector<Table::Column> columns_of(const Cells& numbers) {
  std::vector<Table::Column> out = {{"optimizer"}, {"checkpointing"}, {"clips", Table::Align::right}};
  for (const std::string& title : numbers) out.push_back({title, Table::Align::right});
  return out;
}

template <class CellsOf>
std::string table_of(const Bench& bench, const std::vector<Table::Column>& columns, CellsOf cells_of) {
  Table table(columns);
  for (const Row& row : bench.rows) {
    Cells cells = {row.optimizer, row.checkpointing, std::to_string(row.clips)};
    const Cells numbers = row.measure ? cells_of(*row.measure) : Cells{row.error};
    cells.insert(cells.end(), numbers.begin(), numbers.end());
    cells.resize(columns.size());
    table.add(std::move(cells));
  }
  return table.text();
}

std::string memory_text(const Bench& bench) {
  std::vector<Bytes> owners(kMemory.begin() + 1, kMemory.end());
  if (bench.request.offload != "none") owners.push_back(kHost);
  Cells titles = {"clips/s", "peak",
                  "hours for " + octavo_train::short_count(static_cast<double>(bench.request.total_clips))};
  for (const Bytes& each : owners) titles.emplace_back(each.name);
  return table_of(bench, columns_of(titles), [&](const SpeechMeasure& m) {
    const auto bytes = [](std::int64_t count) {
      return octavo_train::bytes_text(static_cast<double>(count));
    };
    Cells cells = {fixed(m.clips_per_second, 1), bytes(m.peak), fixed(hours_of(bench, m), 1)};
    for (const Bytes& each : owners) cells.push_back(bytes(m.*each.value));
    return cells;
  });
}

std::string time_text(const Bench& bench) {
  Cells titles = {"ms"};
  titles.insert(titles.end(), octavo_train::kStepParts.begin(), octavo_train::kStepParts.end());
  titles.emplace_back("rest");
  return table_of(bench, columns_of(titles), [](const SpeechMeasure& m) {
    Cells out = {ms(m.step_seconds)};
    for (const double part : m.seconds) out.push_back(ms(part));
    out.push_back(ms(m.rest()));
    return out;
  });
}

// Shows only the matmuls of the first row: rows that differ only in the optimizer have the same matmuls.
std::string matmuls_text(const Bench& bench) {
  for (const Row& row : bench.rows) {
    if (!row.measure || row.measure->products.empty()) continue;
    std::string out = fmt::format("\nFP8 matmuls with {} clips\n", row.clips);
    for (const std::string& line : row.measure->products) out += fmt::format("  {}\n", line);
    return out;
  }
  return {};
}

std::string warning_text(const Bench& bench) {
  std::int64_t skipped = 0;
  for (const Row& row : bench.rows) skipped += row.measure ? row.measure->skipped : 0;
  if (skipped == 0) return {};
  return fmt::format(
      "\nwarning: {} steps had non-finite gradients and did not update the weights: do not trust their "
      "times\n",
      skipped);
}

std::string text_of(const Bench& bench) {
  const SpeechBenchRequest& request = bench.request;
  std::string out =
      fmt::format("{}), clips of {} s with {} tokens, computing in {}, weights in {}, on {}",
                  model_text(request.model, bench.parameters), octavo_train::significant(request.seconds, 4),
                  request.tokens, request.dtype, bench.weights, bench.device);
  if (request.fp8 != "off") out += fmt::format(", FP8 matmuls ({}, {})", request.fp8, request.fp8_select);
  if (request.offload != "none") out += ", offload " + request.offload;
  if (request.offload_gradients) out += ", gradients too";
  if (request.accumulation != 1) out += fmt::format(", {} micro-batches a step", request.accumulation);
  return out + "\n\n" + memory_text(bench) + "\nmilliseconds of a step\n" + time_text(bench) +
         matmuls_text(bench) + warning_text(bench);
}

std::string json_of(const Bench& bench) {
  const SpeechBenchRequest& request = bench.request;
  json out = {{"size", request.model.size},
              {"head", request.model.head},
              {"parameters", bench.parameters},
              {"seconds", request.seconds},
              {"tokens", request.tokens},
              {"accumulation", request.accumulation},
              {"steps", request.steps},
              {"offload", request.offload},
              {"offload_gradients", request.offload_gradients},
              {"total_clips", request.total_clips},
              {"dtype", request.dtype},
              {"weights", bench.weights},
              {"device", bench.device}};
  out["cpu"] = cpu_json();
  out["rows"] = json::array();
  for (const Row& row : bench.rows) out["rows"].push_back(row_json(bench, row));
  return out.dump(2) + "\n";
}

}  // namespace

void run_bench_speech(const SpeechBenchRequest& request) {
  const ::torch::Device device =
      take(octavo_train::choose_device(training_of(request, request.optimizers.front()).device), "--device");
  // Checks all optimizers before any work.
  for (const std::string& optimizer : request.optimizers) training_of(request, optimizer);
  Models models(request);
  Bench bench{request, octavo_train::device_text(device), 0, "", {}};
  {
    Progress progress;
    for (const std::string& checkpointing : request.checkpointing) {
      for (const std::string& optimizer : request.optimizers) {
        for (const std::int64_t clips : request.clips) {
          progress.say(optimizer + ", checkpointing " + checkpointing + ", " + std::to_string(clips) +
                       " clips");
          bench.rows.push_back({optimizer, checkpointing, clips, std::nullopt, ""});
          measure_row(bench, bench.rows.back(), device, models);
        }
      }
    }
  }
  std::cout << (request.json ? json_of(bench) : text_of(bench));
}

}  // namespace octavo::cli
