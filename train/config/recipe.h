// The trainer's defaults, and keys and values of other tools that are named after an algorithm. No other
// source of the trainer names an algorithm. This one must: a default must be some algorithm, and transformers
// calls its keys adam_beta1 for every optimizer.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace octavo_train::recipe {

inline constexpr std::string_view kOptimizer = "adamw_8bit";
inline constexpr std::string_view kWithFp32 = "adamw";  // other state formats; messages recommend these
inline constexpr std::string_view kWith8bit = "adamw_8bit";
inline constexpr std::string_view kWith4bit = "adamw_4bit";
// A run logs one of these if use_4bit_optimizer has chosen the optimizer: kWith8bit for true, kWithFp32 for
// false.
inline constexpr std::string_view kSwitchOn =
    "true is 8-bit AdamW (optimizer: adamw_8bit); the states of optimizer: adamw_4bit take about half of its "
    "memory";
inline constexpr std::string_view kSwitchOff =
    "false is AdamW with fp32 states (optimizer: adamw); the states of optimizer: adamw_8bit take about a "
    "quarter of its memory";

inline constexpr std::string_view kNo4bitWeights =
    "4-bit weights are not built in; remove it (4-bit optimizer states are: optimizer: adamw_4bit)";
inline constexpr std::string_view kDeepSpeedSection =
    "a section of DeepSpeed's config file: name the file in training.deepspeed, or write training.parallel: "
    "zero1 or zero2";
inline constexpr std::string_view kDeepSpeedSize =
    "a key of DeepSpeed's config file: name the file in training.deepspeed, or write "
    "per_device_train_batch_size (samples per micro-batch) and global_batch_size (samples per step)";
// A name that means another optimizer in DeepSpeed than here.
inline constexpr std::string_view kDeepSpeedOther = "adam";
inline constexpr std::string_view kDeepSpeedMeans =
    "which is AdamW in DeepSpeed unless adam_w_mode is false: write AdamW, or remove it and write optimizer: "
    "adam in the config";

// The defaults for fine-tuning a pretrained model: NeMo's recipe for speech models, whose optimizer is
// kWithFp32. The warm-up has kFineTuningWarmup steps, or a tenth of all steps if that is less.
inline constexpr std::int64_t kFineTuningWarmup = 5000;
struct Value {
  std::string_view path, value;
};
inline constexpr std::array<Value, 7> kFineTuning = {{{"training.learning_rate", "1.0e-4"},
                                                      {"training.min_lr", "5.0e-6"},
                                                      {"training.beta2", "0.98"},
                                                      {"training.weight_decay", "1.0e-3"},
                                                      {"training.no_decay", "none"},
                                                      {"training.max_grad_norm", "0"},
                                                      {"training.num_train_epochs", "50"}}};

// An option for which the trainer adds to the algorithm's description.
struct Known {
  std::string_view name;
  std::string_view fallback;   // the key's default: recommended, or that of nearly all algorithms
  std::string_view also = {};  // the name in other tools
  std::string_view meaning = {};
  bool fraction = false;  // the range is from 0 to below 1, which is narrower than the description's
};
inline constexpr std::string_view kDecay = "weight_decay", kMomentum = "momentum";
inline constexpr std::array<Known, 5> kKnown = {
    {{kDecay, "0.1"},  // its meaning depends on the algorithm
     {"beta1", "0.9", "adam_beta1", "decay rate of the first moment"},
     {"beta2", "null", "adam_beta2", "decay rate of the second moment, or of the only one"},
     {"eps", "1.0e-08", "adam_epsilon", "added to the denominator"},
     {kMomentum, "0.9", {}, "0: no momentum, and no states for it", true}}};

}  // namespace octavo_train::recipe
