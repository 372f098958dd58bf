// The interface of a task: data by position, a model, its loss, its metrics and their descriptions. The
// training loop, the checkpoints, the log and the report use nothing else of it, so a new task is a folder in
// train/tasks/ and a line in train/tasks/list.h. docs/guides/add_a_task.md shows an example.
//
// A run calls open(), then build() and load_first_weights(), then the other functions. It calls all of them
// from one thread, except read() and batches().rows_at(). Before that build(), a prediction of the run calls
// build(), largest…() and loss() on tensors without memory (device meta), whose values cannot be read.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/folder/evaluation_file.h"
#include "train/checkpoint/initial_weights.h"
#include "train/config/settings.h"
#include "train/data/batches.h"
#include "train/data/order.h"
#include "train/nn/named_tensors.h"
#include "train/nn/weight_gate.h"

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

namespace octavo_train {

// The input of one forward pass.
struct Batch {
  NamedTensors tensors;              // read() returns them on the host; later they are on the run's device
  std::vector<std::uint64_t> draws;  // one per row
  NamedTensors host = {};  // tensors that stay on the host, so that reading them needs no synchronization
  // If rows have different lengths: their sum, and rows x the longest. The log prints the share of padding.
  double length = 0, padded_length = 0;

  // Throw c10::Error if there is no tensor of that name.
  [[nodiscard]] const torch::Tensor& at(std::string_view name) const;
  [[nodiscard]] const torch::Tensor& on_host(std::string_view name) const;
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(draws.size()); }
};

// The key of a forward pass's random numbers, besides the batch's draws.
struct PassKey {
  std::uint64_t seed = 0;
  std::int64_t step = 0;  // from 1
};

// The model's output for a sample with a reference text.
struct Example {
  std::string name;  // name of the sample
  std::string reference, hypothesis;
  std::int64_t number = 0;  // index of the sample among all evaluation samples
};

// The part of an evaluation that one rank computes. Rank r evaluates batch r and every `ranks`-th batch after
// it. The shares are independent of each other.
struct EvaluationCall {
  torch::Device device;
  std::function<bool()> stop;  // returns true to stop the evaluation
  int rank = 0, ranks = 1;
};

// The additive result of a share of an evaluation. Shares are added by summing `sums` element by element and
// concatenating `examples`.
struct Tally {
  std::vector<double> sums;            // defined by the task, the same number in every share
  std::int64_t units = 0;              // units of throughput evaluated
  std::vector<Example> examples = {};  // the first few of the share
};

struct Evaluation {
  std::vector<Metric> metrics;         // one or more; the first is printed in status lines
  std::int64_t units = 0;              // units of throughput evaluated
  std::vector<Example> examples = {};  // a few, of the same samples each time; log, TensorBoard and report
                                       // mark the words that differ
};

// The unit of throughput.
struct Unit {
  std::string name;   // "tokens": "tokens_per_second" in the log
  std::string brief;  // "tok": in status lines
};

// Sample output of a model.
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

  // The differences between the data of a resumed run and the checkpoint's data.
  struct DataChange {
    std::vector<std::string> changed;  // changes that make it other data: refused unless the user insists
    std::vector<std::string> noted;    // changes that are only printed
  };
  struct Opening {
    const Settings& settings;
    const std::string& checkpoint;         // the checkpoint to resume from; empty: none
    const nlohmann::ordered_json* record;  // data_record() of that checkpoint; null: none
  };
  // Finds and checks the data. The settings outlive the task.
  virtual Result<DataChange> open(const Opening& opening) = 0;
  // Returns a description that identifies the data, for checkpoints.
  [[nodiscard]] virtual nlohmann::ordered_json data_record() const = 0;

  // Returns the model with its initial weights, on the CPU in fp32, drawn from torch's generator. The caller
  // moves it to its device and dtype. Throws c10::Error if the settings describe no valid model.
  virtual std::shared_ptr<torch::nn::Module> build(const Settings& settings) = 0;
  // Loads weights that the settings name into the model, which is on its device. It is called for a new run,
  // not for a resumed one. REQUIRES: build().
  virtual Status load_first_weights() { return {}; }
  // Returns the parts of the model that depend on its vocabulary. They are not loaded from a model with
  // another vocabulary.
  [[nodiscard]] virtual ReinitializedLayers reinitialized_layers() const { return {}; }

  // Returns the number of training samples. REQUIRES: open().
  [[nodiscard]] virtual std::int64_t samples() const = 0;
  // Returns how positions are divided into batches, if the task decides that (train/data/length_buckets.h).
  // Null: all batches have per_device_train_batch_size rows. The result lives as long as the task. REQUIRES:
  // open().
  [[nodiscard]] virtual const Batches* batches() const { return nullptr; }
  // Returns the batch of positions first … first + rows - 1, on the host. If batches() is null, position p is
  // draw p. Samples that cannot be read may be skipped. A micro-batch without rows is skipped, and so is the
  // update of a step without micro-batches. Any thread may call it. If it throws a std::exception, the run
  // ends with its text as the error.
  [[nodiscard]] virtual Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const = 0;
  // Returns a batch with the maximum memory use.
  [[nodiscard]] virtual Batch largest(const Order& order, std::int64_t rows) const {
    return read(order, order.start(), rows);
  }
  // Returns an evaluation batch with the maximum memory use, of at most `rows` rows. loss() accepts it, as
  // tally() would.
  [[nodiscard]] virtual Batch largest_to_evaluate(const Order& order, std::int64_t rows) const {
    return largest(order, rows);
  }
  // Returns the units of throughput in `rows` rows.
  [[nodiscard]] virtual std::int64_t units(std::int64_t rows) const = 0;
  [[nodiscard]] virtual Unit unit() const = 0;

  // Returns files that a trained model needs besides weights and settings, such as its tokenizer, by name.
  // Every checkpoint contains them. REQUIRES: build().
  [[nodiscard]] virtual std::map<std::string, std::string> checkpoint_extra_files() const { return {}; }

  // Returns the mean loss of a batch's rows on the device, 0-d, in fp32. Micro-batches of a step are weighted
  // by their rows.
  virtual torch::Tensor loss(const Batch& batch, const PassKey& key) = 0;
  // Returns how many matmuls of a micro-batch use the same weight, for models that reuse their weights. It
  // determines whether a cast of the weights pays off. REQUIRES: build().
  [[nodiscard]] virtual std::int64_t uses_of_weights() const { return 1; }
  // Sets the gate, if the task supports it: loss() then calls the gate with every module before it uses the
  // module's parameters, and set_gate() returns true. If it returns false, all parameters are updated before
  // loss() begins. REQUIRES: build().
  virtual bool set_gate(WeightGate /*gate*/) { return false; }
  // Computes a share of an evaluation, in evaluation mode, without gradients. Returns nullopt if `stop`
  // returned true.
  virtual std::optional<Tally> tally(const EvaluationCall& call) = 0;
  // Returns the evaluation's result from the sum of all shares. The examples are in the order of samples, and
  // there are more than are shown. An exception ends the run.
  [[nodiscard]] virtual Evaluation evaluation(const Tally& all) const = 0;
  // Returns a preview at the end of a run; nullopt if there is nothing to show.
  virtual std::optional<Preview> preview(const torch::Device& device, const std::function<bool()>& stop) = 0;

  // Is called when a run starts or resumes in this existing folder, in which the task may write its own
  // files. A dry run does not call it. Batches may have been read before.
  virtual Status begin(const std::string& /*folder*/) { return {}; }
  // Returns the lines that the run prints at its end.
  [[nodiscard]] virtual std::vector<std::string> ending() const { return {}; }

  // Return the lines that the run prints about its data at its start, and add members to the log's start
  // record. The report shows a text member `data` of it.
  [[nodiscard]] virtual std::vector<std::string> introduction() const = 0;
  virtual void describe(nlohmann::ordered_json& start) const = 0;

  // Returns a text such as "8 sequences of 512 bytes".
  [[nodiscard]] virtual std::string batch_text(std::int64_t rows) const = 0;
  // Returns settings that save memory and change what is trained (shorter samples, a smaller model), as
  // `key=value (what it changes)`. They are the last ones in the message about a full device.
  [[nodiscard]] virtual std::vector<std::string> memory_advice() const = 0;
  // A key that a prediction may change to make a run fit: the length of a sample, or the size of the model.
  // An empty key means none.
  struct SizeKey {
    std::string key;        // "data.block_size"
    std::int64_t now = 0;   // current value
    std::int64_t step = 1;  // values are multiples of it
  };
  [[nodiscard]] virtual SizeKey length_key() const { return {}; }
  [[nodiscard]] virtual SizeKey model_key() const { return {}; }
  // Returns `key=value` settings that divide the task's own limits of a batch by `parts`, such as
  // data.batch_seconds=200. Empty if training.per_device_train_batch_size is the only limit, or if a batch is
  // too small to be divided.
  [[nodiscard]] virtual std::vector<std::string> smaller_limits(std::int64_t /*parts*/) const { return {}; }
  // Returns what would make steps shorter: "a smaller model (n_embd is 256); …".
  [[nodiscard]] virtual std::string shorter_steps() const = 0;
};

// Returns the task of that name. REQUIRES: one of declared_tasks(). It is defined next to the list:
// train/tasks/make.cc.
std::unique_ptr<Task> make_task(std::string_view name);

// Copies a batch to a device, asynchronously if possible.
Batch to_device(Batch batch, const torch::Device& device);
// Returns the draws of the batch's rows on the device, int64 [rows], which determine each row's dropout
// (train/nn/dropout.h).
torch::Tensor draw_numbers(const Batch& batch, const torch::Device& device);

// Sets evaluation mode for a scope.
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

}  // namespace octavo_train
