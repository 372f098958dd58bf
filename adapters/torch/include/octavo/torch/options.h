// The options of the optimizers and of their parameter groups: those of the algorithm, by the names in the
// core's description of it, and those that Octavo adds to every algorithm. A group inherits each option that
// was not set on the group from the optimizer's options; torch does this for its own classes only.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/native.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace octavo::torch {

// An algorithm as the core describes it.
struct Algorithm {
  std::int32_t index;
  octavo_algorithm_info info;
  std::vector<octavo_option_info> options;

  // Returns the index of an option in `options`, or options.size() if the algorithm has no such option.
  std::size_t find(const std::string& name) const {
    std::size_t i = 0;
    while (i < options.size() && name != options[i].name) ++i;
    return i;
  }

  // Like find(), but throws c10::Error, which lists the names, if the algorithm has no such option.
  std::size_t index_of(const std::string& name) const {
    const std::size_t i = find(name);
    if (i < options.size()) return i;
    std::string names;
    for (const octavo_option_info& option : options)
      names += (names.empty() ? "" : ", ") + std::string(option.name);
    TORCH_CHECK(false, "octavo::torch::", info.title, ": got the option '", name, "', expected one of ",
                names);
  }
};

// Throws c10::Error, which lists the names, if the library has no algorithm of this name.
inline const Algorithm& algorithm(const std::string& name) {
  static const std::vector<Algorithm> all = [] {
    std::vector<Algorithm> out(static_cast<std::size_t>(octavo_algorithm_count()));
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i].index = static_cast<std::int32_t>(i);
      out[i].info = native::sized<octavo_algorithm_info>();
      native::check(octavo_algorithm(out[i].index, &out[i].info), "octavo: ");
      for (std::int32_t k = 0; k < out[i].info.options; ++k) {
        out[i].options.push_back(native::sized<octavo_option_info>());
        native::check(octavo_algorithm_option(out[i].index, k, &out[i].options.back()), "octavo: ");
      }
    }
    return out;
  }();
  const std::uint32_t number = native::parse("optimizer", name);
  for (const Algorithm& each : all) {
    if (each.info.number == number) return each;
  }
  TORCH_CHECK(false, "octavo: '", name, "' has no description");
}

template <class T>
struct Option {
  T value{};
  bool given = false;  // true if user code has set it, false if it is a default or inherited

  void set(T to) { value = std::move(to), given = true; }
  void inherit(const Option& from) {
    if (!given) value = from.value;
  }
};

// kPerGroup: groups may have different values. kOptimizer: an option of the complete optimizer, which a group
// cannot change. Archives have both. kRun: an option of the complete optimizer that archives do not have,
// because hooks and the residence of states may differ in the run that loads the archive.
enum class Scope { kPerGroup, kOptimizer, kRun };

// clang-format off
// Each option that Octavo adds to every algorithm: type, name, default, scope. It has a field in Settings,
// and in OptionsOf a getter and a setter that can be chained. docs/guides/libtorch.md explains the options.
#define OCTAVO_TORCH_OPTIONS(X)                                                                             \
  X(bool, maximize, false, kPerGroup)                  /* the step follows the gradient upwards */          \
  X(std::string, state, "fp32", kPerGroup)             /* format of the moments: docs/formats.md */         \
  X(std::string, master, "none", kPerGroup)            /* further bits of bf16: none, stochastic, 24, 32 */ \
  X(std::int64_t, block_size, 0, kPerGroup)            /* elements per scale; 0: the format's default */    \
  X(std::int64_t, min_quantized_size, 4096, kPerGroup) /* smaller parameters keep fp32 states */            \
  X(std::int64_t, seed, 0, kPerGroup)                  /* of stochastic rounding */                         \
  X(double, clip_grad_norm, 0.0, kOptimizer)           /* limit of the norm of all gradients; 0: none */    \
  X(bool, skip_nonfinite, false, kOptimizer)           /* a NaN or infinite gradient skips the step */      \
  X(bool, capturable, false, kOptimizer)               /* step counts are on the device, for CUDA graphs */ \
  X(bool, gradient_release, false, kRun)               /* backward() steps and frees each gradient */       \
  X(std::string, offload, "none", kRun)                /* where states are: none, host, stream, auto */     \
  X(bool, offload_gradients, false, kRun)              /* backward() moves gradients to host memory */      \
  X(bool, accumulate_in_fp32, false, kRun)             /* gradients in host memory are added in fp32 */     \
  X(double, offload_ratio, 1.0, kRun)                  /* fraction of the states' bytes to offload */       \
  X(std::int64_t, gpu_state_budget, -1, kRun)          /* or: bytes of states that stay; -1: no budget */   \
  X(std::int64_t, min_offload_size, 4096, kRun)        /* smaller parameters' states stay on the device */
// clang-format on

struct Settings {
#define OCTAVO_TORCH_FIELD(type, name, value, scope) Option<type> name{value};
  OCTAVO_TORCH_OPTIONS(OCTAVO_TORCH_FIELD)
#undef OCTAVO_TORCH_FIELD

  // Calls f(name, pointer to member, scope) for each option.
  template <class F>
  static void each(F&& f) {
#define OCTAVO_TORCH_CALL(type, name, value, scope) f(#name, &Settings::name, Scope::scope);
    OCTAVO_TORCH_OPTIONS(OCTAVO_TORCH_CALL)
#undef OCTAVO_TORCH_CALL
  }

  // Returns the name that archives of version 0.1 have for an option, or null if it is the present one.
  static const char* former_name(const std::string& name) {
    return name == "clip_grad_norm" ? "max_grad_norm" : name == "skip_nonfinite" ? "guard" : nullptr;
  }
};

class Options : public ::torch::optim::OptimizerOptions {
 public:
  const Algorithm& algorithm() const { return *algorithm_; }
  const Settings& settings() const { return settings_; }

  // Returns an option of the algorithm by its name; a flag is 0 or 1. c10::Error lists the names.
  double get(const std::string& name) const { return numbers_[algorithm_->index_of(name)].value; }
  bool has(const std::string& name) const { return algorithm_->find(name) < numbers_.size(); }

  // LibTorch's LR schedulers call these.
  double get_lr() const override { return get("lr"); }
  void set_lr(const double lr) override { set_number("lr", lr); }

  // Inherits the options that were not set here. REQUIRES: defaults of the same algorithm.
  void inherit(const Options& defaults) {
    for (std::size_t i = 0; i < numbers_.size(); ++i) numbers_[i].inherit(defaults.numbers_[i]);
    Settings::each(
        [&](const char*, auto field, Scope) { (settings_.*field).inherit(defaults.settings_.*field); });
    complete_ = true;
  }
  bool complete() const { return complete_; }

  // Returns a bit for each option that is on and adds moments.
  std::uint32_t switches() const {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const std::int32_t bit = algorithm_->options[i].switch_bit;
      if (bit >= 0 && numbers_[i].value != 0) bits |= 1U << bit;
    }
    return bits;
  }

  // Returns the options of a group as the engine takes them.
  octavo_step_args step_args() const {
    auto args = octavo::make<octavo_step_args>();
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const octavo_option_info& option = algorithm_->options[i];
      if (option.offset < 0) continue;
      char* at = reinterpret_cast<char*>(&args) + option.offset;
      const std::uint32_t flag = numbers_[i].value != 0 ? 1 : 0;
      option.range == kFlag ? std::memcpy(at, &flag, sizeof flag)
                            : std::memcpy(at, &numbers_[i].value, sizeof(double));
    }
    args.maximize = settings_.maximize.value ? 1 : 0;
    args.seed = static_cast<std::uint64_t>(settings_.seed.value);
    return args;
  }

  // Throws c10::Error for a value that no step can use. The engine checks the algorithm's own options.
  void check() const {
    const Settings& s = settings_;
    const std::string &master = s.master.value, &offload = s.offload.value;
    const auto expect = [](bool valid, const char* name, const auto& option, const char* expected) {
      TORCH_CHECK(valid, "Invalid ", name, ": ", option.value, ", expected ", expected);
    };
    expect(s.min_quantized_size.value >= 0, "min_quantized_size", s.min_quantized_size,
           "a number of elements");
    expect(s.clip_grad_norm.value >= 0 && std::isfinite(s.clip_grad_norm.value), "clip_grad_norm",
           s.clip_grad_norm, "a positive number, or 0 for none");
    TORCH_CHECK(
        master == "none" || master == "native" || master == "stochastic" || master == "24" || master == "32",
        "Invalid master: '", master, "', expected \"none\", \"stochastic\", \"24\" or \"32\"");
    TORCH_CHECK(offload == "none" || offload == "host" || offload == "stream" || offload == "auto",
                "Invalid offload: '", offload, "', expected \"none\", \"host\", \"stream\" or \"auto\"");
    expect(s.offload_ratio.value >= 0 && s.offload_ratio.value <= 1, "offload_ratio", s.offload_ratio,
           "a number from 0 (no state leaves the device) to 1 (all)");
    expect(s.gpu_state_budget.value >= -1, "gpu_state_budget", s.gpu_state_budget, "bytes, or -1 for none");
    TORCH_CHECK(s.gpu_state_budget.value < 0 || s.offload_ratio.value == 1, "offload_ratio ",
                s.offload_ratio.value, " and gpu_state_budget ", s.gpu_state_budget.value,
                ": expected one of them");
    expect(s.min_offload_size.value >= 0, "min_offload_size", s.min_offload_size, "a number of elements");
    TORCH_CHECK(
        offload != "none" || !s.offload_gradients.value,
        "offload_gradients needs states in host memory; set offload to \"host\", \"stream\" or \"auto\"");
    TORCH_CHECK(offload == "none" || !s.capturable.value, "capturable and offload \"", offload,
                "\": a CUDA graph cannot hold the work of the host; use offload(\"none\") with CUDA graphs");
    auto spec = octavo::make<octavo_moment_spec>();  // the core checks names and block sizes
    spec.format = native::parse("state", s.state.value);
    spec.block_size = s.block_size.value;
    std::int64_t codes = 0, scales = 0;
    native::check(octavo_moment_layout(&spec, &codes, &scales), "");
  }

  // Archives have the options of the algorithm in torch's form, where the parts of a tuple are one value. An
  // option that is not in the archive keeps its value: archives of other versions have fewer or more options.
  void serialize(::torch::serialize::OutputArchive& archive) const override {
    std::map<std::string, std::vector<c10::IValue>> values;
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const double value = numbers_[i].value;
      const bool flag = algorithm_->options[i].range == kFlag;
      values[archive_key(i)].push_back(flag ? c10::IValue(value != 0) : c10::IValue(value));
    }
    for (auto& [name, parts] : values)
      archive.write(name, has(name) ? parts[0] : c10::ivalue::Tuple::create(std::move(parts)));
    Settings::each([&](const char* name, auto field, Scope scope) {
      if (scope != Scope::kRun) archive.write(name, c10::IValue((settings_.*field).value));
    });
  }
  void serialize(::torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    std::map<std::string, std::size_t> parts;
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const std::size_t part = parts[archive_key(i)]++;
      if (!archive.try_read(archive_key(i), value)) continue;
      if (value.isTuple()) {
        const auto tuple = value.toTuple();
        if (part >= tuple->elements().size()) continue;
        value = tuple->elements()[part];
      }
      numbers_[i].set(value.isBool() ? (value.toBool() ? 1.0 : 0.0) : value.toDouble());
    }
    Settings::each([&](const char* name, auto field, Scope scope) {
      const char* const former = Settings::former_name(name);
      if (scope == Scope::kRun) return;
      if (archive.try_read(name, value) || (former != nullptr && archive.try_read(former, value)))
        (settings_.*field).set(value.to<std::decay_t<decltype((settings_.*field).value)>>());
    });
    complete_ = true;
  }

 protected:
  explicit Options(const Algorithm& algorithm) : algorithm_(&algorithm) {
    for (const octavo_option_info& option : algorithm.options) numbers_.push_back({option.value});
  }
  void set_number(const std::string& name, double value) { numbers_[algorithm_->index_of(name)].set(value); }

  Settings settings_;

 private:
  static constexpr std::uint32_t kFlag = 4;  // octavo_option_info.range

  // Returns the name of an option's value in archives.
  std::string archive_key(std::size_t i) const {
    const octavo_option_info& option = algorithm_->options[i];
    return option.tuple[0] != '\0' ? option.tuple : option.name;
  }

  const Algorithm* algorithm_;
  std::vector<Option<double>> numbers_;  // of algorithm_->options
  bool complete_ = false;                // true after inherit() or after loading
};

// A getter and a chained setter for an option of the algorithm.
#define OCTAVO_TORCH_NUMBER(type, name)                             \
  type name() const { return static_cast<type>(this->get(#name)); } \
  Derived& name(type value) { return this->set(#name, static_cast<double>(value)); }

// The getters and setters that all optimizers have. Derived has the algorithm's name as kName, or passes its
// description.
template <class Derived>
class OptionsOf : public Options {
 public:
  OptionsOf() : Options(octavo::torch::algorithm(Derived::kName)) {}
  OptionsOf(double lr) : OptionsOf() { this->lr(lr); }  // NOLINT(google-explicit-constructor)
  std::unique_ptr<::torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }

  // Sets an option of the algorithm by its name: set("alpha", 0.9). A flag is 0 or 1.
  Derived& set(const std::string& name, double value) {
    set_number(name, value);
    return static_cast<Derived&>(*this);
  }
  OCTAVO_TORCH_NUMBER(double, lr)
  OCTAVO_TORCH_NUMBER(double, weight_decay)

#define OCTAVO_TORCH_SETTING(type, name, initial, scope)          \
  const type& name() const { return this->settings_.name.value; } \
  Derived& name(type value) {                                     \
    this->settings_.name.set(std::move(value));                   \
    return static_cast<Derived&>(*this);                          \
  }
  OCTAVO_TORCH_OPTIONS(OCTAVO_TORCH_SETTING)
#undef OCTAVO_TORCH_SETTING

  [[deprecated("use clip_grad_norm()")]] double max_grad_norm() const { return this->clip_grad_norm(); }
  [[deprecated("use clip_grad_norm()")]] Derived& max_grad_norm(double value) {
    return this->clip_grad_norm(value);
  }
  [[deprecated("use skip_nonfinite()")]] bool guard() const { return this->skip_nonfinite(); }
  [[deprecated("use skip_nonfinite()")]] Derived& guard(bool value) { return this->skip_nonfinite(value); }

 protected:
  explicit OptionsOf(const Algorithm& algorithm) : Options(algorithm) {}
};

// The options of an algorithm that the caller has by name only: AnyOptions(name).lr(1e-3).
struct AnyOptions : OptionsOf<AnyOptions> {
  explicit AnyOptions(const std::string& name) : OptionsOf(octavo::torch::algorithm(name)) {}
};

}  // namespace octavo::torch
