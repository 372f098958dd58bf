// The options of the optimizers and of their parameter groups: the algorithm's by their names (octavo/torch/
// algorithm.h), and Octavo's own. A group inherits what was not set on its options from the optimizer's;
// torch does this for its own classes only, so it is done here.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/algorithm.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace octavo::torch {

template <class T>
struct Option {
  T value{};
  bool given = false;  // by the user, rather than inherited

  void set(T to) { value = std::move(to), given = true; }
  void inherit(const Option& from) {
    if (!given) value = from.value;
  }
};

// The options that every algorithm has.
struct Settings {
  Option<bool> maximize{false};
  Option<std::string> state{"fp32"};
  Option<std::string> master{"none"};
  Option<std::int64_t> block_size{0};
  Option<std::int64_t> min_quantized_size{4096};
  Option<std::int64_t> seed{0};
  Option<double> max_grad_norm{0.0};
  Option<bool> guard{false};
  Option<bool> capturable{false};
  Option<bool> gradient_release{false};
  Option<std::string> offload{"none"};
  Option<bool> offload_gradients{false};
  Option<bool> accumulate_in_fp32{false};
  Option<double> offload_ratio{1.0};
  Option<std::int64_t> gpu_state_budget{-1};
  Option<std::int64_t> min_offload_size{4096};

  // Calls f(name, pointer to member) for each option that groups inherit and archives have.
  template <class F>
  static void each(F&& f) {
    f("maximize", &Settings::maximize), f("state", &Settings::state), f("master", &Settings::master);
    f("block_size", &Settings::block_size), f("min_quantized_size", &Settings::min_quantized_size);
    f("seed", &Settings::seed), f("max_grad_norm", &Settings::max_grad_norm), f("guard", &Settings::guard);
    f("capturable", &Settings::capturable);
  }
  // Those that belong to the whole optimizer: no group can have them alone. Hooks and the place of states are
  // not for archives: an archive is loaded into any.
  template <class F>
  static void whole(F&& f) {
    f("max_grad_norm", &Settings::max_grad_norm), f("guard", &Settings::guard);
    f("capturable", &Settings::capturable), f("gradient_release", &Settings::gradient_release);
    f("offload", &Settings::offload), f("offload_gradients", &Settings::offload_gradients);
    f("accumulate_in_fp32", &Settings::accumulate_in_fp32), f("offload_ratio", &Settings::offload_ratio);
    f("gpu_state_budget", &Settings::gpu_state_budget), f("min_offload_size", &Settings::min_offload_size);
  }
};

class Options : public ::torch::optim::OptimizerOptions {
 public:
  const Algorithm& algorithm() const { return *algorithm_; }
  const Settings& settings() const { return settings_; }

  // An option of the algorithm by its name; a flag is 0 or 1. c10::Error lists the names.
  double get(const std::string& name) const { return numbers_[algorithm_->place(name)].value; }
  bool has(const std::string& name) const { return algorithm_->find(name) < numbers_.size(); }

  // What LibTorch's LR schedulers use.
  double get_lr() const override { return get("lr"); }
  void set_lr(const double lr) override { number("lr").set(lr); }

  // Inherits the options that were not set here. REQUIRES: defaults of the same algorithm.
  void inherit(const Options& defaults) {
    for (std::size_t i = 0; i < numbers_.size(); ++i) numbers_[i].inherit(defaults.numbers_[i]);
    Settings::each([&](const char*, auto field) { (settings_.*field).inherit(defaults.settings_.*field); });
    complete_ = true;
  }
  bool complete() const { return complete_; }

  // A bit for each option that is on and switches moments.
  std::uint32_t switches() const {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const std::int32_t bit = algorithm_->options[i].switch_bit;
      if (bit >= 0 && numbers_[i].value != 0) bits |= 1U << bit;
    }
    return bits;
  }

  // What a step needs to know of them.
  octavo_step_args step_args() const {
    octavo_step_args args = native::sized<octavo_step_args>();
    native::check(octavo_step_args_init(&args), "octavo: ");
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const octavo_option_info& option = algorithm_->options[i];
      if (option.offset < 0) continue;
      char* at = reinterpret_cast<char*>(&args) + option.offset;
      const std::uint32_t flag = numbers_[i].value != 0 ? 1 : 0;
      if (option.range == kFlag) {
        std::memcpy(at, &flag, sizeof flag);
      } else {
        std::memcpy(at, &numbers_[i].value, sizeof(double));
      }
    }
    args.maximize = settings_.maximize.value ? 1 : 0;
    args.seed = static_cast<std::uint64_t>(settings_.seed.value);
    return args;
  }

  // c10::Error for a value that no step can use. The engine knows the algorithm's ranges.
  void check() const {
    const Settings& s = settings_;
    TORCH_CHECK(s.min_quantized_size.value >= 0, "Invalid min_quantized_size: ", s.min_quantized_size.value,
                ", expected a number of elements");
    TORCH_CHECK(s.max_grad_norm.value >= 0 && std::isfinite(s.max_grad_norm.value),
                "Invalid max_grad_norm: ", s.max_grad_norm.value,
                ", expected a positive number, or 0 for none");
    const std::string& master = s.master.value;
    TORCH_CHECK(
        master == "none" || master == "native" || master == "stochastic" || master == "24" || master == "32",
        "Invalid master: '", master, "', expected \"none\", \"stochastic\", \"24\" or \"32\"");
    check_offload();
    octavo_moment_spec spec = native::sized<octavo_moment_spec>();  // the core knows names and block sizes
    spec.format = native::parse("state", s.state.value);
    spec.block_size = s.block_size.value;
    std::int64_t codes = 0, scales = 0;
    native::check(octavo_moment_layout(&spec, &codes, &scales), "");
  }

  // As torch's archives have them: the parts of a tuple are one value. An option that an archive does not
  // have keeps its value: those of other versions have fewer, or more.
  void serialize(::torch::serialize::OutputArchive& archive) const override {
    std::map<std::string, std::vector<c10::IValue>> values;
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const double value = numbers_[i].value;
      const bool flag = algorithm_->options[i].range == kFlag;
      values[key(i)].push_back(flag ? c10::IValue(value != 0) : c10::IValue(value));
    }
    for (auto& [name, parts] : values)
      archive.write(name, has(name) ? parts[0] : c10::ivalue::Tuple::create(std::move(parts)));
    Settings::each(
        [&](const char* name, auto field) { archive.write(name, c10::IValue((settings_.*field).value)); });
  }
  void serialize(::torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    std::map<std::string, std::size_t> parts;
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const std::size_t part = parts[key(i)]++;
      if (!archive.try_read(key(i), value)) continue;
      if (value.isTuple()) {
        const auto tuple = value.toTuple();
        if (part >= tuple->elements().size()) continue;
        value = tuple->elements()[part];
      }
      numbers_[i].set(value.isBool() ? (value.toBool() ? 1.0 : 0.0) : value.toDouble());
    }
    Settings::each([&](const char* name, auto field) {
      if (archive.try_read(name, value))
        (settings_.*field).set(value.to<std::decay_t<decltype((settings_.*field).value)>>());
    });
    complete_ = true;
  }

 protected:
  explicit Options(const Algorithm& algorithm) : algorithm_(&algorithm) {
    for (const octavo_option_info& option : algorithm.options) numbers_.push_back({option.value});
  }
  Option<double>& number(const std::string& name) { return numbers_[algorithm_->place(name)]; }

  Settings settings_;

 private:
  static constexpr std::uint32_t kFlag = 4;  // octavo_option_info.range

  void check_offload() const {
    const Settings& s = settings_;
    const std::string& offload = s.offload.value;
    TORCH_CHECK(offload == "none" || offload == "host" || offload == "stream" || offload == "auto",
                "Invalid offload: '", offload, "', expected \"none\", \"host\", \"stream\" or \"auto\"");
    TORCH_CHECK(s.offload_ratio.value >= 0 && s.offload_ratio.value <= 1,
                "Invalid offload_ratio: ", s.offload_ratio.value,
                ", expected a number from 0 (no state leaves the device) to 1 (all)");
    TORCH_CHECK(s.gpu_state_budget.value >= -1, "Invalid gpu_state_budget: ", s.gpu_state_budget.value,
                ", expected bytes, or -1 for none");
    TORCH_CHECK(s.gpu_state_budget.value < 0 || s.offload_ratio.value == 1, "offload_ratio ",
                s.offload_ratio.value, " and gpu_state_budget ", s.gpu_state_budget.value,
                ": expected one of them");
    TORCH_CHECK(s.min_offload_size.value >= 0, "Invalid min_offload_size: ", s.min_offload_size.value,
                ", expected a number of elements");
    TORCH_CHECK(
        offload != "none" || !s.offload_gradients.value,
        "offload_gradients needs states in host memory; set offload to \"host\", \"stream\" or \"auto\"");
    TORCH_CHECK(offload == "none" || !s.capturable.value, "capturable and offload \"", offload,
                "\": a CUDA graph cannot hold the work of the host; use offload(\"none\") with CUDA graphs");
  }

  // Where an archive has an option.
  std::string key(std::size_t i) const {
    const octavo_option_info& option = algorithm_->options[i];
    return option.tuple[0] != '\0' ? option.tuple : option.name;
  }

  const Algorithm* algorithm_;
  std::vector<Option<double>> numbers_;  // the algorithm's, in its order
  bool complete_ = false;                // inherited already
};

// The setters of Octavo's own options, which return the options, so that they can be chained. Derived has the
// algorithm's name as kName, or is made with it.
template <class Derived>
class OptionsOf : public Options {
 public:
  OptionsOf() : Options(octavo::torch::algorithm(Derived::kName)) {}
  OptionsOf(double lr) : OptionsOf() { this->lr(lr); }  // NOLINT(google-explicit-constructor)
  std::unique_ptr<::torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }

  // An option of the algorithm by its name: set("alpha", 0.9); a flag is 0 or 1.
  Derived& set(const std::string& name, double value) {
    number(name).set(value);
    return static_cast<Derived&>(*this);
  }

  double lr() const { return get("lr"); }
  Derived& lr(double value) { return set("lr", value); }
  double weight_decay() const { return get("weight_decay"); }
  Derived& weight_decay(double value) { return set("weight_decay", value); }
  bool maximize() const { return settings_.maximize.value; }
  Derived& maximize(bool value) { return set(&Settings::maximize, value); }

  // How moments are stored, by the name of a state format (docs/formats.md): "fp32" or "8bit", for example.
  const std::string& state() const { return settings_.state.value; }
  Derived& state(const std::string& value) { return set(&Settings::state, value); }
  // What bf16 parameters keep beyond their 16 bits: "none" (rounded to nearest), "stochastic" (rounding),
  // "24" or "32" (bits of a master weight, the latter equal to fp32's).
  const std::string& master() const { return settings_.master.value; }
  Derived& master(const std::string& value) { return set(&Settings::master, value); }
  // Elements per scale; 0: the format's default.
  std::int64_t block_size() const { return settings_.block_size.value; }
  Derived& block_size(std::int64_t value) { return set(&Settings::block_size, value); }
  // Parameters with fewer elements keep fp32 states.
  std::int64_t min_quantized_size() const { return settings_.min_quantized_size.value; }
  Derived& min_quantized_size(std::int64_t value) { return set(&Settings::min_quantized_size, value); }
  // Of stochastic rounding.
  std::int64_t seed() const { return settings_.seed.value; }
  Derived& seed(std::int64_t value) { return set(&Settings::seed, value); }

  // The following belong to the whole optimizer and cannot be set on a group. The norm of all gradients is
  // clipped to this inside the step; 0: no clipping.
  double max_grad_norm() const { return settings_.max_grad_norm.value; }
  Derived& max_grad_norm(double value) { return set(&Settings::max_grad_norm, value); }
  // A NaN or infinite gradient leaves everything unchanged.
  bool guard() const { return settings_.guard.value; }
  Derived& guard(bool value) { return set(&Settings::guard, value); }
  // Keeps step counts on the device, so that a CUDA graph can capture the step.
  bool capturable() const { return settings_.capturable.value; }
  Derived& capturable(bool value) { return set(&Settings::capturable, value); }
  // Steps each parameter in the backward pass as soon as its gradient is complete, and frees the gradient.
  // step() then ends the step. max_grad_norm clips by the previous step's norm.
  bool gradient_release() const { return settings_.gradient_release.value; }
  Derived& gradient_release(bool value) { return set(&Settings::gradient_release, value); }
  // Where moments and master bits live: "none" (with the parameters), "host" (in host memory, updated by the
  // CPU), "stream" (in host memory, brought through the GPU and updated there) or "auto" ("stream" for what
  // gpu_state_budget does not hold; parameters on the CPU keep theirs).
  const std::string& offload() const { return settings_.offload.value; }
  Derived& offload(const std::string& value) { return set(&Settings::offload, value); }
  // Gradients of offloaded parameters go to host memory in the backward pass and are freed on the device.
  // Those of several backward passes are added up there, in their own type or in fp32.
  bool offload_gradients() const { return settings_.offload_gradients.value; }
  Derived& offload_gradients(bool value) { return set(&Settings::offload_gradients, value); }
  bool accumulate_in_fp32() const { return settings_.accumulate_in_fp32.value; }
  Derived& accumulate_in_fp32(bool value) { return set(&Settings::accumulate_in_fp32, value); }
  // How much of the states leaves the device: a share of their bytes, or all that is beyond a budget of bytes
  // (-1: none). Parameters with fewer elements than min_offload_size keep theirs on the device.
  double offload_ratio() const { return settings_.offload_ratio.value; }
  Derived& offload_ratio(double value) { return set(&Settings::offload_ratio, value); }
  std::int64_t gpu_state_budget() const { return settings_.gpu_state_budget.value; }
  Derived& gpu_state_budget(std::int64_t value) { return set(&Settings::gpu_state_budget, value); }
  std::int64_t min_offload_size() const { return settings_.min_offload_size.value; }
  Derived& min_offload_size(std::int64_t value) { return set(&Settings::min_offload_size, value); }

 protected:
  explicit OptionsOf(const Algorithm& algorithm) : Options(algorithm) {}

  template <class T, class V>
  Derived& set(Option<T> Settings::*field, const V& value) {
    (settings_.*field).set(value);
    return static_cast<Derived&>(*this);
  }
};

// The options of an algorithm that is known by its name alone: AnyOptions(name).lr(1e-3).
struct AnyOptions : OptionsOf<AnyOptions> {
  explicit AnyOptions(const std::string& name) : OptionsOf(octavo::torch::algorithm(name)) {}
};

}  // namespace octavo::torch
