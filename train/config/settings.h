// The settings of every run as C++ types: one field per key of schema.cc, which defines the meanings, the
// defaults and the limits. The settings that a task and its models add are in `task_settings`, in structs
// that they declare (task_config.h). The fields start empty. Only parse() and load() of config.h fill them,
// so a Settings in use is complete and checked.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>
#include <octavo/fp8.h>
#include <octavo/types.h>

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <typeindex>
#include <vector>

namespace octavo_train {

// Holds the settings that tasks and models declare: one struct of each type, found by its type.
class Sections {
 public:
  // Returns the struct. Default-constructs it on first use.
  template <class Section>
  Section& get() {
    std::any& held = held_[typeid(Section)];
    if (!held.has_value()) held = Section{};
    return *std::any_cast<Section>(&held);
  }
  template <class Section>
  [[nodiscard]] const Section& get() const {
    static const Section kNone{};
    const auto found = held_.find(typeid(Section));
    return found == held_.end() ? kNone : *std::any_cast<Section>(&found->second);
  }

 private:
  std::map<std::type_index, std::any> held_;
};

// Selects the matmuls that run in FP8, among those of the forward and the backward pass: those measured to be
// faster in FP8, or all.
enum class Fp8Select { measure, always };
// Selects what happens on a device without FP8 units: an error, or a warning and matmuls in compute_dtype.
enum class Fp8Fallback { error, bf16 };

struct Fp8Settings {
  bool enabled = false;
  octavo::fp8::Settings recipe;
  Fp8Select select{};
  Fp8Fallback fallback{};
};

// One entry of `groups`. A field that is not set has the run's value. Patterns are shell patterns (`*` and
// `?` also match dots) and must match a parameter's full name.
struct GroupSettings {
  std::vector<std::string> params;  // patterns of names
  std::optional<double> weight_decay;
  std::optional<double> learning_rate;  // the peak rate; the scheduler scales all rates in proportion
  std::optional<octavo::StateFormat> state;
  std::optional<bool> freeze;  // true: the parameters are not trained
  friend bool operator==(const GroupSettings&, const GroupSettings&) = default;
};

// Selects the parameters without weight decay.
struct NoDecay {
  enum class Kind { automatic, none, patterns };
  Kind kind = Kind::none;  // automatic: parameters with fewer than two dimensions (biases and norms)
  std::vector<std::string> patterns;
  friend bool operator==(const NoDecay&, const NoDecay&) = default;
};

// Maps a pattern of names in the file to names in the model. `*` matches any text, including dots. Each `*`
// in `to` is replaced by the text that the `*` at the same position of `from` matches.
struct Rename {
  std::string from;
  std::string to;
  friend bool operator==(const Rename&, const Rename&) = default;
};

// The settings for initial weights that are read from a file instead of drawn at random.
struct InitSettings {
  std::optional<std::string> from = {};  // a run's folder, a checkpoint's, or a safetensors file
  std::vector<Rename> rename = {};       // the first rule that matches a name is used
  bool strict = true;                    // missing and extra weights are errors
};

// Returns the name that a rule gives to `name`; nullopt if the rule does not match the complete name. If
// several matches are possible, each `*` matches as little as possible, the leftmost `*` first.
std::optional<std::string> renamed(const Rename& rule, const std::string& name);

// The precision of the forward and backward pass.
enum class ComputeType { float32, bfloat16, float16 };
enum class Scheduler { cosine, linear, constant, wsd };

// The distribution of the optimizer over ranks. ddp: each rank has the complete optimizer. zero1: each rank
// has a part of the states and masters. zero2: each rank also keeps only that part of the gradients.
// `automatic` is ddp.
enum class Parallel { automatic, ddp, zero1, zero2 };
// The type in which gradients are summed over ranks. `automatic` is their own type, or float32 if a step has
// several micro-batches.
enum class ReduceType { automatic, float32 };

// The location of the optimizer's states. none: with the weights. host: in host memory, updated by the CPU.
// stream: in host memory, copied through the device and updated there. `automatic` is stream for states that
// exceed gpu_state_budget, and none on the CPU.
enum class Offload { none, host, stream, automatic };

// The master copy of bf16 weights. weight_store() resolves `automatic`.
enum class MasterWeights { automatic, bits24, bits32, stochastic, none };

struct OptimizerName {
  octavo::Algorithm algorithm{};
  octavo::StateFormat state = octavo::StateFormat::fp32;
  friend bool operator==(const OptimizerName&, const OptimizerName&) = default;
};

struct DeviceName {
  enum class Kind { automatic, cpu, cuda };
  Kind kind = Kind::automatic;
  std::optional<int> index;  // only for cuda; nullopt is the current device
  friend bool operator==(const DeviceName&, const DeviceName&) = default;
};

struct Resume {
  bool latest = false;         // resume from the newest checkpoint of output_dir, if there is one
  std::string path;            // or resume from this checkpoint, which must exist
  bool allow_changes = false;  // with `latest`: requires a checkpoint, but settings and data may differ
  friend bool operator==(const Resume&, const Resume&) = default;
};

// The value of per_device_train_batch_size for `auto`: only the task's own limits bound a batch.
inline constexpr std::int64_t kNoLimit = std::int64_t{1} << 24;

struct ModelSettings {
  std::string name;
};

struct DataSettings {
  std::int64_t max_samples = 0;  // -1: all
  std::optional<std::vector<std::int64_t>> stages;
  std::int64_t max_eval_samples = 0;  // -1: all
  std::int64_t seed = 0;
  std::int64_t dataloader_num_workers = 0;
};

struct TrainingSettings {
  OptimizerName optimizer;
  std::optional<OptimizerName> optimizer_fallback;
  double learning_rate = 0;
  Scheduler lr_scheduler{};
  std::int64_t warmup_steps = 0;
  std::optional<std::int64_t> decay_steps;
  double min_lr = 0;
  // The algorithms' options by name; flags are 0 and 1. options.h defines the value of an option that is not
  // in the map.
  std::map<std::string, double, std::less<>> options;
  NoDecay no_decay;
  std::vector<GroupSettings> groups;
  ComputeType compute_dtype{};
  Fp8Settings fp8;
  MasterWeights master_weights{};
  Offload offload{};
  bool offload_gradients = false;
  double offload_ratio = 1;                      // fraction of the states' bytes that leaves the device
  std::optional<std::int64_t> gpu_state_budget;  // bytes of states kept on the device
  std::int64_t per_device_train_batch_size = 0;
  std::int64_t per_device_eval_batch_size = 0;
  std::int64_t gradient_accumulation_steps = 0;  // for one rank; accumulation_for() computes it for several
  bool accumulation_is_auto = false;             // auto: computed from global_batch_size
  std::optional<std::int64_t> global_batch_size;
  double max_grad_norm = 0;               // 0: no clipping
  std::optional<std::int64_t> max_steps;  // exactly one of max_steps and num_train_epochs is set
  std::optional<double> num_train_epochs;
  std::optional<std::int64_t> eval_steps;
  std::optional<std::int64_t> save_steps;
  std::optional<std::int64_t> save_total_limit;
  std::optional<std::string> save_best;  // a metric of the task
  std::int64_t save_best_limit = 0;
  std::int64_t logging_steps = 0;
  Resume resume_from_checkpoint;
  std::optional<std::string> init_from;
  std::vector<Rename> init_rename;
  bool init_strict = true;
  bool convert_states = false;
  std::optional<std::int64_t> num_gpus;  // nullopt: the number of ranks that were started
  Parallel parallel{};
  ReduceType reduce_dtype{};
  double rank_timeout = 0;  // seconds
  std::string deepspeed;    // only for display; its content is copied to the other settings
  DeviceName device;
  std::int64_t seed = 0;
};

// Placeholder for a folder named after the config file; see load() in config.h.
inline constexpr const char* kAutomaticFolder = "auto";

// Placeholder for the task that model.name belongs to; parse() and load() replace it with the task's name.
inline constexpr const char* kAutomaticTask = "auto";

struct Settings {
  std::string task;
  ModelSettings model;
  DataSettings data;
  TrainingSettings training;
  std::string output_dir;
  Sections task_settings;  // settings of the task and its model
  // Maps relative paths of the file that exist neither in the file's folder nor in the working directory to
  // their places in the file's folder. places_looked_at() in paths.h uses them for errors.
  std::map<std::string, std::string> beside_config;
};

// Returns true if GPUs of this compute capability have tensor cores for bfloat16.
constexpr bool has_bfloat16_units(int compute_major) { return compute_major >= 8; }

// Returns the warning "compute_dtype: bfloat16 is slow on …; use compute_dtype=float16" for a GPU before
// compute capability 8.0, whose tensor cores do not support bfloat16. Empty if the type is not slow there.
inline std::string slow_type_text(ComputeType type, std::string_view gpu, int compute_major,
                                  int compute_minor) {
  if (type != ComputeType::bfloat16 || has_bfloat16_units(compute_major)) return {};
  return fmt::format(
      "compute_dtype: bfloat16 is slow on {} (compute capability {}.{}), whose tensor cores support float16 "
      "and "
      "not bfloat16; use compute_dtype=float16",
      gpu, compute_major, compute_minor);
}

// Returns how weights are stored. Resolves `master_weights: auto`.
[[nodiscard]] inline octavo::WeightStore weight_store(const TrainingSettings& training) {
  if (training.compute_dtype != ComputeType::bfloat16) return octavo::WeightStore::nearest;
  switch (training.master_weights) {
    case MasterWeights::automatic:
    case MasterWeights::bits24:
      return octavo::WeightStore::residual8;
    case MasterWeights::bits32:
      return octavo::WeightStore::residual16;
    case MasterWeights::stochastic:
      return octavo::WeightStore::stochastic;
    case MasterWeights::none:
      break;
  }
  return octavo::WeightStore::nearest;
}

}  // namespace octavo_train
