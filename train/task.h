// The interface of a task: data by position, a model, its loss, its metrics and texts about them. The
// training loop, the checkpoints, the log and the report use nothing else of it, so a new task is a folder in
// train/tasks/ and a line in train/tasks/list.h. docs/guides/add_a_task.md shows an example.
//
// A run calls open() once, then build() once, then the other functions. It calls all of them from one thread,
// except read() and Batches::rows_at(). Predictions of memory and time use another object, which
// copy_without_model() returns: only that object's model runs on tensors without memory (device meta).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/folder/evaluation_file.h"
#include "train/checkpoint/initial_weights.h"
#include "train/config/settings.h"
#include "train/data/order.h"
#include "train/nn/named_tensors.h"
#include "train/nn/weight_matmul.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

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

// Sample output of a model.
struct Preview {
  std::string title;                                        // "a sample"
  std::string shown;                                        // for a terminal
  std::vector<std::pair<std::string, std::string>> record;  // for the log; the report shows `prompt`, `text`
};

// The differences between the data of a resumed run and the checkpoint's data.
struct DataChange {
  std::vector<std::string> changed = {};  // changes that make it other data: refused unless the user insists
  std::vector<std::string> noted = {};    // changes that are only printed
};

// The data of a task, as open() found it.
struct TaskData {
  std::int64_t samples = 0;        // to train on
  std::int64_t units_per_row = 1;  // units of throughput in a row of a batch
  nlohmann::ordered_json record;   // identifies the data; every checkpoint contains it
  // How positions are divided into batches, if the task decides that (train/data/length_buckets.h). Null: all
  // batches have per_device_train_batch_size rows, and position p is draw p.
  std::shared_ptr<const Batches> batches = {};
  DataChange change = {};
};

// A model that a task has built. The functions may refer to the task, which outlives them.
struct TaskModel {
  std::shared_ptr<torch::nn::Module>
      module;  // in fp32, on the CPU; the caller moves it to its device and dtype
  // Loads the weights that the settings name into the module, which is on its device. It is called for a new
  // run, not for a resumed one. Empty: the settings name none.
  std::function<Status()> load_first_weights = {};
  // Sets the gate: loss() then calls it with every module before it uses the module's parameters. Empty: all
  // parameters are updated before loss() begins.
  std::function<void(WeightGate)> set_gate = {};
  // The parts that depend on the model's vocabulary. They are not loaded from a model with another
  // vocabulary.
  ReinitializedLayers reinitialized_layers = {};
  // How many matmuls of a micro-batch use the same weight, for models that reuse their weights. It determines
  // whether a cast of the weights pays off.
  std::int64_t uses_of_weights = 1;
  // Files that a trained model needs besides weights and settings, such as its tokenizer, by name. Every
  // checkpoint contains them.
  std::map<std::string, std::string> extra_files = {};
};

// The unit of throughput.
struct Unit {
  std::string name;   // "tokens": "tokens_per_second" in the log
  std::string brief;  // "tok": in status lines
};

// A key that a prediction may change to make a run fit.
struct SizeKey {
  std::string key = {};   // "data.block_size"; empty: there is none
  std::int64_t now = 0;   // current value
  std::int64_t step = 1;  // values are multiples of it
};

// A key of the task that limits the size of a batch.
struct BatchLimit {
  std::string key;  // "data.batch_seconds"
  double value = 0;
  bool integer = false;
};

// Texts about a task, for the console, the log and messages with advice.
struct TaskText {
  Unit unit;
  std::vector<std::string> introduction = {};  // lines about the data, printed when a run starts
  std::vector<std::string> ending = {};        // lines printed when a run ends
  // Members of the log's start record. The report shows a text member `data`.
  nlohmann::ordered_json start = nlohmann::ordered_json::object();
  std::function<std::string(std::int64_t rows)> batch =
      {};  // returns a text such as "8 sequences of 512 bytes"
  // Settings that save memory and change what is trained (shorter samples, a smaller model), as `key=value
  // (what it changes)`. They are the last ones in the message about a full device.
  std::vector<std::string> memory_advice = {};
  std::string speed_advice = {};  // what would make steps shorter: "a smaller model (n_embd is 256); …"
  SizeKey length_key = {};        // the length of a sample
  SizeKey model_key = {};         // the size of the model
  // Limits besides training.per_device_train_batch_size, and the rows of the largest batch within them.
  std::vector<BatchLimit> limits = {};
  std::int64_t limited_rows = 0;

  // Returns `key=value` settings that divide the limits by `parts`, such as data.batch_seconds=200. Empty if
  // there are no limits, or if a batch is too small to be divided.
  [[nodiscard]] std::vector<std::string> smaller_limits(std::int64_t parts) const;
};

class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  struct OpenArgs {
    const Settings& settings;              // outlive the task
    const std::string& checkpoint;         // the checkpoint to resume from; empty: none
    const nlohmann::ordered_json* record;  // TaskData::record of that checkpoint; null: none
  };
  // Finds and checks the data.
  virtual Result<TaskData> open(const OpenArgs& args) = 0;
  // Returns another task on the same data, without a model, for predictions. The data is shared: it is not
  // opened again. REQUIRES: open().
  [[nodiscard]] virtual std::unique_ptr<Task> copy_without_model() const = 0;
  // Returns the model with its initial weights, drawn from torch's generator. The task keeps the module for
  // the functions below. Throws c10::Error if the settings describe no valid model.
  virtual TaskModel build(const Settings& settings) = 0;

  // Returns the batch of positions first … first + rows - 1, on the host. Samples that cannot be read may be
  // skipped. A micro-batch without rows is skipped, and so is the update of a step without micro-batches. Any
  // thread may call it. If it throws a std::exception, the run ends with its text as the error.
  [[nodiscard]] virtual Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const = 0;
  enum class BatchUse { training, evaluation };
  // Returns a batch of at most `rows` rows with the maximum memory use. loss() accepts it.
  [[nodiscard]] virtual Batch largest_batch(const Order& order, std::int64_t rows, BatchUse /*use*/) const {
    return read(order, order.start(), rows);
  }

  // Returns the mean loss of a batch's rows on the device, 0-d, in fp32. Micro-batches of a step are weighted
  // by their rows.
  virtual torch::Tensor loss(const Batch& batch, const PassKey& key) = 0;
  // Evaluates a share of the evaluation samples, in evaluation mode, without gradients. Returns nullopt if
  // `stop` returned true.
  virtual std::optional<Tally> evaluate_shard(const EvaluationCall& call) = 0;
  // Returns the evaluation's result from the sum of all shares. The examples are in the order of samples, and
  // there are more than are shown. An exception ends the run.
  [[nodiscard]] virtual Evaluation summarize(const Tally& all) const = 0;
  // Returns a preview at the end of a run; nullopt if there is nothing to show.
  virtual std::optional<Preview> preview(const torch::Device& /*device*/,
                                         const std::function<bool()>& /*stop*/) {
    return std::nullopt;
  }

  // Is called when a run starts or resumes in this existing folder, in which the task may write its own
  // files. A dry run does not call it. Batches may have been read before.
  virtual Status set_run_folder(const std::string& /*folder*/) { return {}; }
  // Returns the texts about the task as it is now. Its functions live as long as the task.
  [[nodiscard]] virtual TaskText text() const = 0;
};

// A task whose data is open.
struct OpenTask {
  std::unique_ptr<Task> task;
  TaskData data;
};
// Makes the task of the settings and opens its data, without a checkpoint.
Result<OpenTask> open_task(const Settings& settings);

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
