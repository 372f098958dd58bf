// See deepspeed.h. The table kRows lists the supported keys. A key whose value must be converted has a
// function.
// SPDX-License-Identifier: MIT
#include "train/config/deepspeed.h"

#include "train/config/codec.h"
#include "train/config/recipe.h"

#include <algorithm>
#include <array>
#include <utility>

namespace octavo_train {
namespace {

enum class Means { section, value, nothing, special };

struct Row {
  std::string_view path;
  Means means;
  std::string_view text = {};  // for value: the trainer's key; for nothing: the reason
};

constexpr std::string_view kOwnScale = "the loss is scaled dynamically, by the trainer's own rule";
constexpr std::string_view kOwnBuckets = "buckets have a size of their own";
constexpr std::string_view kAlwaysPinned = "host memory is always pinned where that is possible";
constexpr std::string_view kOwnBuffers = "buffers of the host have a number and a size of their own";
constexpr std::string_view kAlwaysBeside = "copies always run beside the work";
constexpr std::string_view kOwnLog = "logging_steps and the run's log are what there is";
constexpr std::string_view kAllOptimizers = "all of the trainer's optimizers can be divided";

constexpr std::array kRows = {
    Row{"train_batch_size", Means::value, "training.global_batch_size"},
    Row{"train_micro_batch_size_per_gpu", Means::value, "training.per_device_train_batch_size"},
    Row{"gradient_accumulation_steps", Means::value, "training.gradient_accumulation_steps"},
    Row{"gradient_clipping", Means::value, "training.max_grad_norm"},
    Row{"communication_data_type", Means::value, "training.reduce_dtype"},
    Row{"bf16", Means::section},
    Row{"bf16.enabled", Means::value, "training.bf16"},
    Row{"fp16", Means::section},
    Row{"fp16.enabled", Means::value, "training.fp16"},
    Row{"fp16.loss_scale", Means::special},
    Row{"fp16.initial_scale_power", Means::nothing, kOwnScale},
    Row{"fp16.loss_scale_window", Means::nothing, kOwnScale},
    Row{"fp16.hysteresis", Means::nothing, kOwnScale},
    Row{"fp16.consecutive_hysteresis", Means::nothing, kOwnScale},
    Row{"fp16.min_loss_scale", Means::nothing, kOwnScale},
    Row{"zero_optimization", Means::section},
    Row{"zero_optimization.stage", Means::special},
    Row{"zero_optimization.offload_optimizer", Means::special},
    Row{"zero_optimization.offload_optimizer.device", Means::special},
    Row{"zero_optimization.offload_optimizer.ratio", Means::value, "training.offload_ratio"},
    Row{"zero_optimization.offload_optimizer.pin_memory", Means::nothing, kAlwaysPinned},
    Row{"zero_optimization.offload_optimizer.buffer_count", Means::nothing, kOwnBuffers},
    Row{"zero_optimization.offload_optimizer.fast_init", Means::nothing, kOwnBuffers},
    Row{"zero_optimization.offload_optimizer.pipeline_read", Means::nothing, kAlwaysBeside},
    Row{"zero_optimization.offload_optimizer.pipeline_write", Means::nothing, kAlwaysBeside},
    Row{"zero_optimization.offload_param", Means::special},
    Row{"zero_optimization.cpu_offload", Means::special},
    Row{"zero_optimization.contiguous_gradients", Means::nothing, "gradients always go to flat buckets"},
    Row{"zero_optimization.overlap_comm", Means::nothing,
        "gradients are always reduced while the backward pass runs"},
    Row{"zero_optimization.reduce_scatter", Means::nothing, "parts are always reduced where they belong"},
    Row{"zero_optimization.allgather_partitions", Means::nothing, "weights are always gathered by buckets"},
    Row{"zero_optimization.reduce_bucket_size", Means::nothing, kOwnBuckets},
    Row{"zero_optimization.allgather_bucket_size", Means::nothing, kOwnBuckets},
    Row{"zero_optimization.round_robin_gradients", Means::nothing, kOwnBuckets},
    Row{"optimizer", Means::section},
    Row{"optimizer.type", Means::special},
    Row{"optimizer.params", Means::section},
    Row{"optimizer.params.lr", Means::value, "training.learning_rate"},
    Row{"optimizer.params.betas", Means::special},
    Row{"optimizer.params.eps", Means::value, "training.eps"},
    Row{"optimizer.params.weight_decay", Means::value, "training.weight_decay"},
    Row{"zero_allow_untested_optimizer", Means::nothing, kAllOptimizers},
    Row{"zero_force_ds_cpu_optimizer", Means::nothing, kAllOptimizers},
    Row{"steps_per_print", Means::nothing, kOwnLog},
    Row{"wall_clock_breakdown", Means::nothing, kOwnLog},
};

// Advice on what to write instead of a section that is not read.
struct Instead {
  std::string_view path, text;
};
constexpr std::array kInstead = {
    Instead{"scheduler", "write lr_scheduler, warmup_steps and min_lr in the config"},
    Instead{"activation_checkpointing", "write gradient_checkpointing: true in the config"},
    Instead{"amp", "use bf16 or fp16"},
};

bool is_word(const YamlNode& node, std::string_view word) {
  return node.kind == YamlNode::Kind::scalar && node.text == word;
}

// Returns true for null and auto, which keep the config's own value.
bool is_open(const YamlNode& node) { return node.kind == YamlNode::Kind::null || is_word(node, "auto"); }

const YamlNode* item_of(const YamlNode& map, std::string_view key) {
  const auto found = std::ranges::find(map.keys, key, &YamlNode::text);
  return found == map.keys.end() ? nullptr : &map.items[static_cast<std::size_t>(found - map.keys.begin())];
}

// Returns true if an offload section selects no device.
bool is_nowhere(const YamlNode& node) {
  if (flag().read(node) == false) return true;
  const YamlNode* const device = node.kind == YamlNode::Kind::map ? item_of(node, "device") : nullptr;
  return device != nullptr && (device->kind == YamlNode::Kind::null || is_word(*device, "none"));
}

YamlNode word_at(std::string_view word, TextPlace place) {
  return {.kind = YamlNode::Kind::scalar, .text = std::string(word), .plain = true, .place = place};
}

class Reader {
 public:
  explicit Reader(const Source& source) : source_(source) {}

  Status read(const YamlNode& map, const std::string& section) {
    for (std::size_t i = 0; i < map.keys.size(); ++i) {
      const YamlNode& word = map.keys[i];
      const std::string path = section + word.text;
      for (std::size_t before = 0; before < i; ++before)
        if (map.keys[before].text == word.text)
          return wrong(word, path, "given twice, at " + at(source_, map.keys[before].place) + " before");
      RETURN_IF_ERROR(read_key(path, word, map.items[i]));
    }
    return {};
  }

  DeepSpeedSettings take() {
    out_.offloads_gradients = gives("training.parallel", "zero2") && gives("training.offload", "host");
    return std::move(out_);
  }

 private:
  [[nodiscard]] Status wrong(const YamlNode& where, std::string_view path, const std::string& reason) const {
    return Status::invalid(at(source_, where.place) + ": " + shown(path) + ": " + reason);
  }

  void add(std::string_view key, const std::string& path, const YamlNode& word, YamlNode value) {
    out_.values.push_back({key, path, std::move(value), word.place});
  }

  [[nodiscard]] bool gives(std::string_view key, std::string_view value) const {
    const auto found = std::ranges::find(out_.values, key, &DeepSpeedValue::key);
    return found != out_.values.end() && found->value.text == value;
  }

  void note(const YamlNode& word, const std::string& path, std::string_view why) {
    out_.notes.push_back(at(source_, word.place) + ": " + path + ": without effect: " + std::string(why));
  }

  Status read_key(const std::string& path, const YamlNode& word, const YamlNode& value) {
    const auto* const row = std::ranges::find(kRows, path, &Row::path);
    if (row == kRows.end()) return unknown(path, word);
    if (is_open(value)) return {};
    switch (row->means) {
      case Means::section:
        if (value.kind == YamlNode::Kind::map) return read(value, path + ".");
        return wrong(value, path, "got " + shown(value) + ", expected a section in braces");
      case Means::value:
        add(row->text, path, word, value);
        return {};
      case Means::nothing:
        note(word, path, row->text);
        return {};
      case Means::special:
        break;
    }
    if (path == "zero_optimization.stage") return read_stage(path, word, value);
    if (path == "optimizer.type") return read_optimizer(path, word, value);
    if (path == "optimizer.params.betas") return read_betas(path, word, value);
    if (path == "fp16.loss_scale") return read_loss_scale(path, word, value);
    if (path == "zero_optimization.offload_optimizer") return read_offload(path, word, value);
    if (path == "zero_optimization.offload_optimizer.device") return read_offload_device(path, word, value);
    if (path == "zero_optimization.cpu_offload") return read_cpu_offload(path, word, value);
    return read_offload_param(path, word, value);
  }

  [[nodiscard]] Status unknown(const std::string& path, const YamlNode& word) const {
    const auto* const known = std::ranges::find(kInstead, path, &Instead::path);
    return wrong(
        word, path,
        known == kInstead.end()
            ? "the trainer has nothing that it stands for; remove it (docs/guides/ranks.md has what is read)"
            : "is not read from DeepSpeed's file; remove it, and " + std::string(known->text));
  }

  Status read_stage(const std::string& path, const YamlNode& word, const YamlNode& value) {
    constexpr std::array<std::string_view, 3> kStages = {"ddp", "zero1", "zero2"};
    if (is_word(value, "3")) {
      return wrong(value, path,
                   "got 3, but weights that are divided among ranks are not built in; use 0, 1 or 2 "
                   "(training.parallel: ddp, zero1 or zero2)");
    }
    const auto stage = integer(0, 2).read(value);
    if (!stage) return wrong(value, path, "got " + shown(value) + ", expected 0, 1 or 2");
    add("training.parallel", path, word, word_at(kStages[static_cast<std::size_t>(*stage)], value.place));
    return {};
  }

  Status read_optimizer(const std::string& path, const YamlNode& word, const YamlNode& value) {
    if (lower(value.text) == recipe::kDeepSpeedOther)
      return wrong(value, path, "got " + shown(value.text) + ", " + std::string(recipe::kDeepSpeedMeans));
    add("training.optimizer", path, word, value);
    return {};
  }

  Status read_betas(const std::string& path, const YamlNode& word, const YamlNode& value) {
    if (value.kind != YamlNode::Kind::list || value.items.size() != 2)
      return wrong(value, path, "got " + shown(value) + ", expected a list of two numbers");
    add("training.beta1", path, word, value.items[0]);
    add("training.beta2", path, word, value.items[1]);
    return {};
  }

  Status read_loss_scale(const std::string& path, const YamlNode& word, const YamlNode& value) {
    if (real({.low = 0, .high = 0}).read(value)) {
      note(word, path, kOwnScale);
      return {};
    }
    return wrong(value, path,
                 "got " + shown(value) +
                     ", but a fixed scale of the loss is not built in; use 0, which is dynamic, or bf16");
  }

  // Sets training.offload to host, because DeepSpeed's optimizer for the device cpu runs on the CPU, as with
  // `host`.
  void offload_to_host(const std::string& path, const YamlNode& word, TextPlace place) {
    add("training.offload", path, word, word_at("host", place));
  }

  Status read_offload(const std::string& path, const YamlNode& word, const YamlNode& value) {
    if (is_nowhere(value)) return {};
    if (value.kind != YamlNode::Kind::map)
      return wrong(value, path, "got " + shown(value) + ", expected a section in braces");
    if (item_of(value, "device") == nullptr)
      return wrong(word, path, "has no device; write \"device\": \"cpu\" (training.offload: host)");
    return read(value, path + ".");
  }

  Status read_offload_device(const std::string& path, const YamlNode& word, const YamlNode& value) {
    if (is_word(value, "cpu")) {
      offload_to_host(path, word, value.place);
      return {};
    }
    return wrong(value, path,
                 "got " + shown(value) +
                     ", expected cpu (training.offload: host) or none; states on a disk are not built in");
  }

  Status read_cpu_offload(const std::string& path, const YamlNode& word, const YamlNode& value) {
    const auto on = flag().read(value);
    if (!on) return wrong(value, path, "got " + shown(value) + ", expected true or false");
    if (*on) offload_to_host(path, word, value.place);
    return {};
  }

  Status read_offload_param(const std::string& path, const YamlNode& word, const YamlNode& value) {
    if (is_nowhere(value)) return {};
    return wrong(
        word, path,
        "weights stay on their device; remove it. Optimizer states and gradients can live in host memory: "
        "offload_optimizer, or training.offload: host or stream and offload_gradients: true");
  }

  const Source& source_;
  DeepSpeedSettings out_;
};

}  // namespace

Result<DeepSpeedSettings> read_deepspeed(const YamlNode& root, const Source& source) {
  if (root.kind != YamlNode::Kind::map) {
    return Status::invalid(at(source, root.place) + ": got " + shown(root) +
                           ", expected DeepSpeed's keys in braces");
  }
  Reader reader(source);
  RETURN_IF_ERROR(reader.read(root, ""));
  return reader.take();
}

Result<DeepSpeedSettings> parse_deepspeed(std::string_view text, const Source& source) {
  std::string spaced(text);
  std::ranges::replace(spaced, '\t', ' ');  // JSON may be indented by tabs, YAML not
  ASSIGN_OR_RETURN(const auto root, read_yaml(spaced, source));
  return read_deepspeed(root, source);
}

}  // namespace octavo_train
