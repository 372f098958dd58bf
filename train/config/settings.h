// The settings that every run has as C++ types: one field per key of schema.cc, which has the meanings, the
// defaults and the limits. What a task and its models add lies in `own`, in structs that they declare
// (task_config.h). The fields start empty; only parse() and load() of config.h fill them, so a Settings in
// use is complete and checked.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/fp8_settings.h"
#include "train/config/group_settings.h"
#include "train/config/init_settings.h"
#include "train/config/sections.h"

#include <octavo/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

// What the passes compute in.
enum class ComputeType { float32, bfloat16, float16 };
enum class Scheduler { cosine, linear, constant, wsd };

// What ranks share: gradients alone, or the optimizer's states too, or both of them by parts. `automatic` is
// ddp.
enum class Parallel { automatic, ddp, zero1, zero2 };
// What gradients are summed over ranks in. `automatic` is their own type.
enum class ReduceType { automatic, float32 };

// Where the optimizer's states live: with the weights, in host memory and updated by the CPU, or there and
// brought through the device. `automatic` is stream for what gpu_state_budget does not hold, and none on the
// CPU.
enum class Offload { none, host, stream, automatic };

// The master of bf16 weights. `automatic` is resolved: see weight_store().
enum class MasterWeights { automatic, bits24, bits32, stochastic, none };

struct OptimizerName {
  Algorithm algorithm{};
  StateFormat state = StateFormat::fp32;
  friend bool operator==(const OptimizerName&, const OptimizerName&) = default;
};

struct DeviceName {
  enum class Kind { automatic, cpu, cuda };
  Kind kind = Kind::automatic;
  std::optional<int> index;  // of cuda alone; none is the current device
  friend bool operator==(const DeviceName&, const DeviceName&) = default;
};

struct Resume {
  bool latest = false;   // from the newest checkpoint of output_dir, if there is one
  std::string path;      // or from this one, which must be there
  bool changed = false;  // with `latest`: it must be there, and settings and data may have changed since
  friend bool operator==(const Resume&, const Resume&) = default;
};

// Of per_device_train_batch_size: as many samples as what else limits a batch allows.
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
  // The algorithms' options by name, flags as 0 and 1; options.h says what one is that is not here.
  std::map<std::string, double, std::less<>> options;
  NoDecay no_decay;
  std::vector<GroupSettings> groups;
  ComputeType compute_dtype{};
  Fp8Settings fp8;
  MasterWeights master_weights{};
  Offload offload{};
  bool offload_gradients = false;
  double offload_ratio = 1;                      // of the states' bytes that leave the device
  std::optional<std::int64_t> gpu_state_budget;  // bytes of states that stay on the device instead
  std::int64_t per_device_train_batch_size = 0;
  std::int64_t per_device_eval_batch_size = 0;
  std::int64_t gradient_accumulation_steps = 0;  // of one rank: accumulation_for() has those of several
  bool accumulation_follows = false;             // from global_batch_size: it was given as auto
  std::optional<std::int64_t> global_batch_size;
  double max_grad_norm = 0;                // 0: no clipping
  std::optional<std::int64_t> max_steps;   // exactly one of the two
  std::optional<double> num_train_epochs;  // has a value
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
  std::optional<std::int64_t> num_gpus;  // none: as many ranks as were started
  Parallel parallel{};
  ReduceType reduce_dtype{};
  double rank_timeout = 0;  // seconds
  std::string deepspeed;    // for people: the other settings have what it says
  DeviceName device;
  std::int64_t seed = 0;
};

// Stands for a folder that is named after the config file: see load() in config.h.
inline constexpr const char* kAutomaticFolder = "auto";

// Stands for the task that model.name belongs to; parse() and load() put its name in place.
inline constexpr const char* kAutomaticTask = "auto";

struct Settings {
  std::string task;
  ModelSettings model;
  DataSettings data;
  TrainingSettings training;
  std::string output_dir;
  Sections own;  // of the task and its model
  // Relative paths of the file that were neither beside it nor in the working directory: where they would be
  // beside it. For errors: places_looked_at() in paths.h.
  std::map<std::string, std::string> beside_config;
};

// The value that `master_weights: auto` stands for.
[[nodiscard]] inline WeightStore weight_store(const TrainingSettings& training) {
  if (training.compute_dtype != ComputeType::bfloat16) return WeightStore::nearest;
  switch (training.master_weights) {
    case MasterWeights::automatic:
    case MasterWeights::bits24:
      return WeightStore::residual8;
    case MasterWeights::bits32:
      return WeightStore::residual16;
    case MasterWeights::stochastic:
      return WeightStore::stochastic;
    case MasterWeights::none:
      break;
  }
  return WeightStore::nearest;
}

}  // namespace octavo::train
