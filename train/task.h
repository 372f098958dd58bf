// What a run trains, as the loop, the checkpoints, the log and the report see it: data by position, a model,
// its loss, its metrics and what to say about them. They know nothing else of it, so a new task is a
// folder in train/tasks/ and a line in train/tasks/list.h; docs/guides/add_a_task.md writes one.
//
// A run calls open(), then build() and load_first_weights(), then the rest; all of it from one thread, except
// read() and batches().rows_at(). Before that build() a plan of the run calls build(), largest…() and loss(),
// on tensors without memory (device meta), of which no value can be read.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/folder/metric.h"
#include "train/checkpoint/reinitialized_layers.h"
#include "train/config/settings.h"
#include "train/data/batches.h"
#include "train/data/order.h"
#include "train/nn/named_tensors.h"
#include "train/nn/weight_gate.h"

#include <octavo/status.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// What one forward pass computes on.
struct Batch {
  NamedTensors tensors;              // on the host, as read() gives them; then on the run's device
  std::vector<std::uint64_t> draws;  // of its rows, one each
  NamedTensors host = {};            // what stays on the host, so that a pass reads it without a wait
  // Where rows have different lengths: their sum, and rows x the longest. The log tells the share of padding.
  double length = 0, padded_length = 0;

  // Throw c10::Error where there is none of that name.
  [[nodiscard]] const torch::Tensor& at(std::string_view name) const;
  [[nodiscard]] const torch::Tensor& on_host(std::string_view name) const;
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(draws.size()); }
};

// What random numbers of a pass depend on, besides the batch's draws.
struct PassKey {
  std::uint64_t seed = 0;
  std::int64_t step = 0;  // the first is 1
};

// What the model made of a sample whose text is known.
struct Example {
  std::string name;  // of the sample
  std::string reference, hypothesis;
  std::int64_t number = 0;  // of the sample, among all to evaluate on
};

// An evaluation is divided among ranks: of its batches in a row, rank r has number r and every ranks-th after
// it. No share depends on another.
struct EvaluationCall {
  torch::Device device;
  std::function<bool()> stop;  // asks for an end
  int rank = 0, ranks = 1;
};

// What a share of an evaluation adds up to, so that shares can be added: sums number by number, examples one
// after the other.
struct Tally {
  std::vector<double> sums;            // the task's own, as many in every share
  std::int64_t units = 0;              // of throughput, that it went through
  std::vector<Example> examples = {};  // the first few of the share
};

struct Evaluation {
  std::vector<Metric> metrics;         // at least one; the first stands in the lines of progress
  std::int64_t units = 0;              // of throughput, that it went through
  std::vector<Example> examples = {};  // a few, of the same samples each time; log, TensorBoard and report
                                       // mark the words that differ
};

// What throughput is counted in.
struct Unit {
  std::string name;   // "tokens": "tokens_per_second" in the log
  std::string brief;  // "tok": in the lines of progress
};

// What a model can show of itself.
struct Preview {
  std::string title;                                        // "a sample"
  std::string shown;                                        // for a terminal
  std::vector<std::pair<std::string, std::string>> record;  // for the log; the report shows `prompt`, `text`
};

class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // What the data of a run that goes on is, compared with the checkpoint's.
  struct DataChange {
    std::vector<std::string> changed;  // what makes it other data: refused, unless the user insists
    std::vector<std::string> noted;    // what is said
  };
  struct Opening {
    const Settings& settings;
    const std::string& checkpoint;         // that the run goes on from; empty: none
    const nlohmann::ordered_json* record;  // data_record() of that checkpoint; null: none
  };
  // Finds and checks the data. The settings outlive the task.
  virtual Result<DataChange> open(const Opening& opening) = 0;
  // What identifies the data, for checkpoints.
  [[nodiscard]] virtual nlohmann::ordered_json data_record() const = 0;

  // The model with its first weights, on the CPU in fp32, from torch's generator. The caller moves it to its
  // device and dtype. Throws c10::Error where the settings are no model.
  virtual std::shared_ptr<torch::nn::Module> build(const Settings& settings) = 0;
  // For a run that begins, and not for one that goes on: gives the model, on its device, weights that the
  // settings name. REQUIRES: build().
  virtual Status load_first_weights() { return {}; }
  // What of the model depends on its vocabulary, for weights of one with another.
  [[nodiscard]] virtual FreshParts fresh_parts() const { return {}; }

  // Samples that there are to train on. REQUIRES: open().
  [[nodiscard]] virtual std::int64_t samples() const = 0;
  // How positions are divided into batches, where it is the task that decides (train/data/buckets.h). Null:
  // all have per_device_train_batch_size rows. REQUIRES: open(); it lives as long as the task.
  [[nodiscard]] virtual const Batches* batches() const { return nullptr; }
  // The batch of positions first … first + rows - 1, on the host. Without batches() of its own, position p is
  // draw p. Samples that cannot be read may be left out: of a batch without rows the pass is left out, of a
  // step without passes the update. Any thread may call it. Throws what the run ends with: a std::exception,
  // whose text is the run's error.
  [[nodiscard]] virtual Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const = 0;
  // A batch that needs as much memory as any.
  [[nodiscard]] virtual Batch largest(const Order& order, std::int64_t rows) const {
    return read(order, order.start(), rows);
  }
  // The same of an evaluation's batches, of up to so many rows. loss() takes it, as tally() would.
  [[nodiscard]] virtual Batch largest_to_evaluate(const Order& order, std::int64_t rows) const {
    return largest(order, rows);
  }
  // Units of throughput in so many rows.
  [[nodiscard]] virtual std::int64_t units(std::int64_t rows) const = 0;
  [[nodiscard]] virtual Unit unit() const = 0;

  // Files that a trained model needs besides weights and settings, such as its tokenizer, by name: every
  // checkpoint has them. REQUIRES: build().
  [[nodiscard]] virtual std::map<std::string, std::string> kept_files() const { return {}; }

  // The mean loss of a batch's rows on the device, 0-d, in fp32. Passes of a step count by their rows.
  virtual torch::Tensor loss(const Batch& batch, const PassKey& key) = 0;
  // How many products of a pass have one weight, where a model uses its weights again: what a cast of them is
  // worth. REQUIRES: build().
  [[nodiscard]] virtual std::int64_t uses_of_weights() const { return 1; }
  // A task that can calls the gate in loss(), with every module before it uses the parameters there, and
  // returns true. For others all parameters are there before loss() begins. REQUIRES: build().
  virtual bool set_gate(WeightGate /*gate*/) { return false; }
  // A share of an evaluation, in evaluation mode, without gradients. None where `stop` asks for an end.
  virtual std::optional<Tally> tally(const EvaluationCall& call) = 0;
  // What all shares together say; the examples are in the order of samples, and more than are shown. Throws
  // what the run ends with.
  [[nodiscard]] virtual Evaluation evaluation(const Tally& all) const = 0;
  // At the end of a run; none: there is nothing to show.
  virtual std::optional<Preview> preview(const torch::Device& device, const std::function<bool()>& stop) = 0;

  // A run begins, or goes on, in this folder, which is there: what the task writes besides goes into it. A
  // rehearsal has none. Batches may have been read before.
  virtual Status begin(const std::string& /*folder*/) { return {}; }
  // What the run says at its end, a line each.
  [[nodiscard]] virtual std::vector<std::string> ending() const { return {}; }

  // What the run says first about its data, a line each, and what its start in the log has besides; a text
  // `data` there stands in the report.
  [[nodiscard]] virtual std::vector<std::string> introduction() const = 0;
  virtual void describe(nlohmann::ordered_json& start) const = 0;

  // "8 sequences of 512 bytes".
  [[nodiscard]] virtual std::string batch_text(std::int64_t rows) const = 0;
  // Settings that save memory and change what is trained (shorter samples, a smaller model), as
  // `key=value (what it changes)`. The message about a full device has them last.
  [[nodiscard]] virtual std::vector<std::string> memory_advice() const = 0;
  // Keys that a plan may change to make a run fit: how long a sample is, and how large the model. Empty:
  // none.
  struct SizeKey {
    std::string key;        // "data.block_size"
    std::int64_t now = 0;   // its value
    std::int64_t step = 1;  // values are multiples of it
  };
  [[nodiscard]] virtual SizeKey length_key() const { return {}; }
  [[nodiscard]] virtual SizeKey model_key() const { return {}; }
  // Words `key=value` that divide the task's own limits of a batch by `parts`: data.batch_seconds=200. Empty:
  // training.per_device_train_batch_size is the only limit, or a batch is too small to be divided.
  [[nodiscard]] virtual std::vector<std::string> smaller_limits(std::int64_t /*parts*/) const { return {}; }
  // What would make steps shorter: "a smaller model (n_embd is 256); …".
  [[nodiscard]] virtual std::string shorter_steps() const = 0;
};

// The task of that name. REQUIRES: one of declared_tasks(). Defined beside the list: train/tasks/make.cc.
std::unique_ptr<Task> make_task(std::string_view name);

// Copies a batch to a device, in the background where that is possible.
Batch to_device(Batch batch, const torch::Device& device);
// The draws of its rows there, int64 [rows]: what a row's dropout depends on (nn/dropout.h).
torch::Tensor draw_numbers(const Batch& batch, const torch::Device& device);

// Evaluation mode for a scope.
class EvalScope {
 public:
  explicit EvalScope(torch::nn::Module& model) : model_(model), training_(model.is_training()) {
    model_.eval();
  }
  ~EvalScope() { model_.train(training_); }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  torch::nn::Module& model_;
  bool training_;
};

}  // namespace octavo::train
