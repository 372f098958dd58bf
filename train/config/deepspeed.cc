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

// Returns true for a word, with or without quotes: JSON has words in quotes.
bool is_text(const YamlNode& node, std::string_view word) {
  return node.kind == YamlNode::Kind::scalar && node.text == word;
}

// Returns true for null and auto, which keep the config's own value.
bool keeps_own_value(const YamlNode& node) {
  return node.kind == YamlNode::Kind::null || is_text(node, "auto");
}

const YamlNode* item_of(const YamlNode& map, std::string_view key) {
  const auto found = std::ranges::find(map.keys, key, &YamlNode::text);
  return found == map.keys.end() ? nullptr : &map.items[static_cast<std::size_t>(found - map.keys.begin())];
}

// Returns true if an offload section selects no device.
bool selects_no_device(const YamlNode& node) {
  if (flag().read(node) == false) return true;
  const YamlNode* const device = node.kind == YamlNode::Kind::map ? item_of(node, "device") : nullptr;
  return device != nullptr && (device->kind == YamlNode::Kind::null || is_text(*device, "none"));
}

constexpr std::string_view kOwnLossScale = "the loss is scaled dynamically, by the trainer's own rule";

class Reader {
 public:
  explicit Reader(const Source& source) : source_(source) {}

  Status read(const YamlNode& map, const std::string& section);

  DeepSpeedSettings take() {
    out_.offloads_gradients = gives("training.parallel", "zero2") && gives("training.offload", "host");
    return std::move(out_);
  }

  // A key of the file with its value.
  struct Entry {
    const std::string& path;  // zero_optimization.stage
    const YamlNode& word;     // the last part of the path, as a node with its place
    const YamlNode& value;
  };
  // Convert the values that are not passed on unchanged.
  Status read_section(const Entry& entry) {
    if (entry.value.kind == YamlNode::Kind::map) return read(entry.value, entry.path + ".");
    return unexpected(entry, "a section in braces");
  }
  Status read_stage(const Entry& entry) {
    constexpr std::array<std::string_view, 3> kStages = {"ddp", "zero1", "zero2"};
    if (is_text(entry.value, "3")) {
      return error(entry.value, entry.path,
                   "got 3, but weights that are divided among ranks are not built in; use 0, 1 or 2 "
                   "(training.parallel: ddp, zero1 or zero2)");
    }
    const auto stage = integer(0, 2).read(entry.value);
    if (!stage) return unexpected(entry, "0, 1 or 2");
    add("training.parallel", entry, word_node(kStages[static_cast<std::size_t>(*stage)], entry));
    return {};
  }
  Status read_optimizer(const Entry& entry) {
    if (lower(entry.value.text) == recipe::kDeepSpeedOther)
      return error(entry.value, entry.path,
                   fmt::format("got {}, {}", shown(entry.value.text), recipe::kDeepSpeedMeans));
    add("training.optimizer", entry, entry.value);
    return {};
  }
  Status read_betas(const Entry& entry) {
    if (entry.value.kind != YamlNode::Kind::list || entry.value.items.size() != 2)
      return unexpected(entry, "a list of two numbers");
    add("training.beta1", entry, entry.value.items[0]);
    add("training.beta2", entry, entry.value.items[1]);
    return {};
  }
  Status read_loss_scale(const Entry& entry) {
    if (!real({.low = 0, .high = 0}).read(entry.value)) {
      return error(
          entry.value, entry.path,
          fmt::format("got {}, but a fixed scale of the loss is not built in; use 0, which is dynamic, "
                      "or bf16",
                      shown(entry.value)));
    }
    add_note(entry, kOwnLossScale);
    return {};
  }
  Status read_offload(const Entry& entry) {
    if (selects_no_device(entry.value)) return {};
    if (entry.value.kind == YamlNode::Kind::map && item_of(entry.value, "device") == nullptr)
      return error(entry.word, entry.path,
                   "has no device; write \"device\": \"cpu\" (training.offload: host)");
    return read_section(entry);
  }
  Status read_offload_device(const Entry& entry) {
    if (!is_text(entry.value, "cpu"))
      return unexpected(entry, "cpu (training.offload: host) or none; states on a disk are not built in");
    offload_to_host(entry);
    return {};
  }
  Status read_cpu_offload(const Entry& entry) {
    const auto on = flag().read(entry.value);
    if (!on) return unexpected(entry, "true or false");
    if (*on) offload_to_host(entry);
    return {};
  }
  Status read_offload_param(const Entry& entry) {
    if (selects_no_device(entry.value)) return {};
    return error(
        entry.word, entry.path,
        "weights stay on their device; remove it. Optimizer states and gradients can be in host memory: "
        "offload_optimizer, or training.offload: host or stream and offload_gradients: true");
  }

 private:
  [[nodiscard]] Status error(const YamlNode& node, std::string_view path, std::string_view reason) const {
    return invalid_error("{}: {}: {}", at(source_, node.place), shown(path), reason);
  }
  [[nodiscard]] Status unexpected(const Entry& entry, std::string_view expected) const {
    return error(entry.value, entry.path, fmt::format("got {}, expected {}", shown(entry.value), expected));
  }
  void add(std::string_view key, const Entry& entry, YamlNode value) {
    out_.values.push_back({key, entry.path, std::move(value), entry.word.place});
  }
  // Sets training.offload to host, because DeepSpeed's optimizer for the device cpu runs on the CPU, as with
  // `host`.
  void offload_to_host(const Entry& entry) { add("training.offload", entry, word_node("host", entry)); }
  void add_note(const Entry& entry, std::string_view reason) {
    out_.notes.push_back(
        fmt::format("{}: {}: without effect: {}", at(source_, entry.word.place), entry.path, reason));
  }
  [[nodiscard]] static YamlNode word_node(std::string_view word, const Entry& entry) {
    return {
        .kind = YamlNode::Kind::scalar, .text = std::string(word), .plain = true, .place = entry.value.place};
  }
  [[nodiscard]] bool gives(std::string_view key, std::string_view value) const {
    const auto found = std::ranges::find(out_.values, key, &DeepSpeedValue::key);
    return found != out_.values.end() && found->value.text == value;
  }
  Status read_key(const Entry& entry);

  const Source& source_;
  DeepSpeedSettings out_;
};

struct Row {
  std::string_view path;
  std::string_view key = {};                                  // the trainer's key that gets the value
  std::string_view no_effect = {};                            // or the reason why the value has no effect
  Status (Reader::*convert)(const Reader::Entry&) = nullptr;  // or the function that reads it
};
constexpr Row sets(std::string_view path, std::string_view key) { return {.path = path, .key = key}; }
constexpr Row no_effect(std::string_view path, std::string_view why) { return {path, {}, why}; }
constexpr Row converted(std::string_view path, Status (Reader::*convert)(const Reader::Entry&)) {
  return {path, {}, {}, convert};
}

constexpr std::string_view kOwnBuckets = "the trainer chooses the size of its buckets";
constexpr std::string_view kAlwaysPinned = "host memory is always pinned if that is possible";
constexpr std::string_view kOwnBuffers = "the trainer chooses the number and the size of its host buffers";
constexpr std::string_view kAlwaysOverlapped = "copies always overlap with computation";
constexpr std::string_view kOwnLog = "logging_steps and the run's log replace it";
constexpr std::string_view kAllOptimizers = "the states of all of the trainer's optimizers can be divided";

constexpr std::array kRows = {
    sets("train_batch_size", "training.global_batch_size"),
    sets("train_micro_batch_size_per_gpu", "training.per_device_train_batch_size"),
    sets("gradient_accumulation_steps", "training.gradient_accumulation_steps"),
    sets("gradient_clipping", "training.max_grad_norm"),
    sets("communication_data_type", "training.reduce_dtype"),
    converted("bf16", &Reader::read_section),
    sets("bf16.enabled", "training.bf16"),
    converted("fp16", &Reader::read_section),
    sets("fp16.enabled", "training.fp16"),
    converted("fp16.loss_scale", &Reader::read_loss_scale),
    no_effect("fp16.initial_scale_power", kOwnLossScale),
    no_effect("fp16.loss_scale_window", kOwnLossScale),
    no_effect("fp16.hysteresis", kOwnLossScale),
    no_effect("fp16.consecutive_hysteresis", kOwnLossScale),
    no_effect("fp16.min_loss_scale", kOwnLossScale),
    converted("zero_optimization", &Reader::read_section),
    converted("zero_optimization.stage", &Reader::read_stage),
    converted("zero_optimization.offload_optimizer", &Reader::read_offload),
    converted("zero_optimization.offload_optimizer.device", &Reader::read_offload_device),
    sets("zero_optimization.offload_optimizer.ratio", "training.offload_ratio"),
    no_effect("zero_optimization.offload_optimizer.pin_memory", kAlwaysPinned),
    no_effect("zero_optimization.offload_optimizer.buffer_count", kOwnBuffers),
    no_effect("zero_optimization.offload_optimizer.fast_init", kOwnBuffers),
    no_effect("zero_optimization.offload_optimizer.pipeline_read", kAlwaysOverlapped),
    no_effect("zero_optimization.offload_optimizer.pipeline_write", kAlwaysOverlapped),
    converted("zero_optimization.offload_param", &Reader::read_offload_param),
    converted("zero_optimization.cpu_offload", &Reader::read_cpu_offload),
    no_effect("zero_optimization.contiguous_gradients", "gradients are always in flat buckets"),
    no_effect("zero_optimization.overlap_comm", "gradients are always reduced while the backward pass runs"),
    no_effect("zero_optimization.reduce_scatter", "each part is always reduced on the rank that needs it"),
    no_effect("zero_optimization.allgather_partitions", "weights are always gathered by buckets"),
    no_effect("zero_optimization.reduce_bucket_size", kOwnBuckets),
    no_effect("zero_optimization.allgather_bucket_size", kOwnBuckets),
    no_effect("zero_optimization.round_robin_gradients", kOwnBuckets),
    converted("optimizer", &Reader::read_section),
    converted("optimizer.type", &Reader::read_optimizer),
    converted("optimizer.params", &Reader::read_section),
    sets("optimizer.params.lr", "training.learning_rate"),
    converted("optimizer.params.betas", &Reader::read_betas),
    sets("optimizer.params.eps", "training.eps"),
    sets("optimizer.params.weight_decay", "training.weight_decay"),
    no_effect("zero_allow_untested_optimizer", kAllOptimizers),
    no_effect("zero_force_ds_cpu_optimizer", kAllOptimizers),
    no_effect("steps_per_print", kOwnLog),
    no_effect("wall_clock_breakdown", kOwnLog),
};

// Advice on what to write instead of a section that is not read.
struct Advice {
  std::string_view path, text;
};
constexpr std::array kAdvice = {
    Advice{"scheduler", "write lr_scheduler, warmup_steps and min_lr in the config"},
    Advice{"activation_checkpointing", "write gradient_checkpointing: true in the config"},
    Advice{"amp", "use bf16 or fp16"},
};

Status Reader::read_key(const Entry& entry) {
  const auto* const row = std::ranges::find(kRows, entry.path, &Row::path);
  if (row == kRows.end()) {
    const auto* const advice = std::ranges::find(kAdvice, entry.path, &Advice::path);
    return error(
        entry.word, entry.path,
        advice == kAdvice.end()
            ? "the trainer has no such feature; remove it (docs/guides/ranks.md lists the supported keys)"
            : fmt::format("is not read from DeepSpeed's file; remove it, and {}", advice->text));
  }
  if (keeps_own_value(entry.value)) return {};
  if (row->convert != nullptr) return (this->*row->convert)(entry);
  if (row->key.empty())
    add_note(entry, row->no_effect);
  else
    add(row->key, entry, entry.value);
  return {};
}

Status Reader::read(const YamlNode& map, const std::string& section) {
  for (std::size_t i = 0; i < map.keys.size(); ++i) {
    const YamlNode& word = map.keys[i];
    const std::string path = section + word.text;
    for (std::size_t before = 0; before < i; ++before)
      if (map.keys[before].text == word.text)
        return error(word, path,
                     fmt::format("given twice; the first is at {}", at(source_, map.keys[before].place)));
    RETURN_IF_ERROR(read_key({path, word, map.items[i]}));
  }
  return {};
}

}  // namespace

Result<DeepSpeedSettings> read_deepspeed(const YamlNode& root, const Source& source) {
  if (root.kind != YamlNode::Kind::map)
    return invalid_error("{}: got {}, expected DeepSpeed's keys in braces", at(source, root.place),
                         shown(root));
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
