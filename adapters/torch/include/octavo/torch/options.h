// The options of the optimizers and of their parameter groups: torch's names and defaults, and Octavo's own.
// A group inherits what was not set on its options from the optimizer's; torch does this for its own classes
// only, so it is done here.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/native.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

namespace octavo::torch {

using Betas = std::tuple<double, double>;

template <class T>
struct Option {
  T value{};
  bool given = false;  // by the user, rather than inherited

  void set(T to) { value = std::move(to), given = true; }
};

// Everything that any of the optimizers reads; each class of options shows what its own does.
struct Settings {
  Option<double> lr{1e-3};
  Option<Betas> betas{Betas{0.9, 0.999}};
  Option<double> eps{1e-8};
  Option<double> weight_decay{0.0};
  Option<double> momentum{0.0};
  Option<double> dampening{0.0};
  Option<bool> nesterov{false};
  Option<bool> amsgrad{false};
  Option<bool> maximize{false};
  Option<std::string> state{"fp32"};
  Option<std::string> master{"none"};
  Option<std::int64_t> block_size{0};
  Option<std::int64_t> min_quantized_size{4096};
  Option<std::int64_t> seed{0};
  Option<double> max_grad_norm{0.0};
  Option<bool> guard{false};

  // Calls f(name, pointer to member) for each option.
  template <class F>
  static void each(F&& f) {
    f("lr", &Settings::lr), f("betas", &Settings::betas), f("eps", &Settings::eps);
    f("weight_decay", &Settings::weight_decay), f("momentum", &Settings::momentum);
    f("dampening", &Settings::dampening), f("nesterov", &Settings::nesterov);
    f("amsgrad", &Settings::amsgrad), f("maximize", &Settings::maximize);
    f("state", &Settings::state), f("master", &Settings::master), f("block_size", &Settings::block_size);
    f("min_quantized_size", &Settings::min_quantized_size), f("seed", &Settings::seed);
    f("max_grad_norm", &Settings::max_grad_norm), f("guard", &Settings::guard);
  }
};

class Options : public ::torch::optim::OptimizerOptions {
 public:
  const Settings& settings() const { return settings_; }

  // What LibTorch's LR schedulers use.
  double get_lr() const override { return settings_.lr.value; }
  void set_lr(const double lr) override { settings_.lr.set(lr); }

  // Inherits the options that were not set here. REQUIRES: defaults of the same class.
  void inherit(const Options& defaults) {
    Settings::each([&](const char*, auto field) {
      if (!(settings_.*field).given) (settings_.*field).value = (defaults.settings_.*field).value;
    });
    complete_ = true;
  }
  bool complete() const { return complete_; }

  // c10::Error for a value that no step can use.
  void check() const {
    const Settings& s = settings_;
    const auto [beta1, beta2] = s.betas.value;
    TORCH_CHECK(s.lr.value >= 0 && std::isfinite(s.lr.value), "Invalid learning rate: ", s.lr.value);
    TORCH_CHECK(s.eps.value >= 0, "Invalid epsilon value: ", s.eps.value);
    TORCH_CHECK(0 <= beta1 && beta1 < 1, "Invalid beta parameter at index 0: ", beta1);
    TORCH_CHECK(0 <= beta2 && beta2 < 1, "Invalid beta parameter at index 1: ", beta2);
    TORCH_CHECK(s.weight_decay.value >= 0, "Invalid weight_decay value: ", s.weight_decay.value);
    TORCH_CHECK(s.momentum.value >= 0, "Invalid momentum value: ", s.momentum.value);
    TORCH_CHECK(!s.nesterov.value || (s.momentum.value > 0 && s.dampening.value == 0),
                "Nesterov momentum requires a momentum and zero dampening");
    TORCH_CHECK(s.min_quantized_size.value >= 0, "Invalid min_quantized_size: ", s.min_quantized_size.value,
                ", expected a number of elements");
    TORCH_CHECK(s.max_grad_norm.value >= 0 && std::isfinite(s.max_grad_norm.value),
                "Invalid max_grad_norm: ", s.max_grad_norm.value,
                ", expected a positive number, or 0 for none");
    const std::string& master = s.master.value;
    TORCH_CHECK(
        master == "none" || master == "native" || master == "stochastic" || master == "24" || master == "32",
        "Invalid master: '", master, "', expected \"none\", \"stochastic\", \"24\" or \"32\"");
    octavo_moment_spec spec = native::sized<octavo_moment_spec>();  // the core knows names and block sizes
    spec.format = native::parse("state", s.state.value);
    spec.numel = 4096;
    spec.block_size = s.block_size.value;
    std::int64_t codes = 0, scales = 0;
    native::check(octavo_moment_layout(&spec, &codes, &scales), "");
  }

  void serialize(::torch::serialize::OutputArchive& archive) const override {
    Settings::each(
        [&](const char* name, auto field) { archive.write(name, c10::IValue((settings_.*field).value)); });
  }
  void serialize(::torch::serialize::InputArchive& archive) override {
    Settings::each([&](const char* name, auto field) {
      c10::IValue value;
      archive.read(name, value);
      (settings_.*field).set(value.to<std::decay_t<decltype((settings_.*field).value)>>());
    });
    complete_ = true;
  }

 protected:
  Settings settings_;

 private:
  bool complete_ = false;  // inherited already
};

// What all optimizers have; setters return the options, so that they can be chained.
template <class Derived>
class CommonOptions : public Options {
 public:
  std::unique_ptr<::torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }

  double lr() const { return settings_.lr.value; }
  Derived& lr(double value) { return set(&Settings::lr, value); }
  double weight_decay() const { return settings_.weight_decay.value; }
  Derived& weight_decay(double value) { return set(&Settings::weight_decay, value); }
  bool maximize() const { return settings_.maximize.value; }
  Derived& maximize(bool value) { return set(&Settings::maximize, value); }

  // How moments are stored: "fp32", "bf16", "8bit", "4bit", "4bit-rank1", "fp8" or "fp8-e5m2".
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

  // Belongs to the whole optimizer, so it cannot be set on a group. The norm of all gradients is clipped to
  // this inside the step; 0: no clipping.
  double max_grad_norm() const { return settings_.max_grad_norm.value; }
  Derived& max_grad_norm(double value) { return set(&Settings::max_grad_norm, value); }
  // A NaN or infinite gradient leaves everything unchanged.
  bool guard() const { return settings_.guard.value; }
  Derived& guard(bool value) { return set(&Settings::guard, value); }

 protected:
  template <class T, class V>
  Derived& set(Option<T> Settings::*field, const V& value) {
    (settings_.*field).set(value);
    return static_cast<Derived&>(*this);
  }
};

template <class Derived>
class AdamFamilyOptions : public CommonOptions<Derived> {
 public:
  const Betas& betas() const { return this->settings_.betas.value; }
  Derived& betas(const Betas& value) { return this->set(&Settings::betas, value); }
  double eps() const { return this->settings_.eps.value; }
  Derived& eps(double value) { return this->set(&Settings::eps, value); }
  bool amsgrad() const { return this->settings_.amsgrad.value; }
  Derived& amsgrad(bool value) { return this->set(&Settings::amsgrad, value); }
};

struct AdamWOptions : AdamFamilyOptions<AdamWOptions> {
  AdamWOptions() { settings_.weight_decay.value = 1e-2; }
  AdamWOptions(double lr) : AdamWOptions() { settings_.lr.set(lr); }  // NOLINT(google-explicit-constructor)
};

struct AdamOptions : AdamFamilyOptions<AdamOptions> {
  AdamOptions() = default;
  AdamOptions(double lr) { settings_.lr.set(lr); }  // NOLINT(google-explicit-constructor)
};

struct SGDOptions : CommonOptions<SGDOptions> {
  SGDOptions() = default;
  SGDOptions(double lr) { settings_.lr.set(lr); }  // NOLINT(google-explicit-constructor)

  double momentum() const { return settings_.momentum.value; }
  SGDOptions& momentum(double value) { return set(&Settings::momentum, value); }
  double dampening() const { return settings_.dampening.value; }
  SGDOptions& dampening(double value) { return set(&Settings::dampening, value); }
  bool nesterov() const { return settings_.nesterov.value; }
  SGDOptions& nesterov(bool value) { return set(&Settings::nesterov, value); }
};

struct LionOptions : CommonOptions<LionOptions> {
  LionOptions() {
    settings_.lr.value = 1e-4;
    settings_.betas.value = Betas{0.9, 0.99};
  }
  LionOptions(double lr) : LionOptions() { settings_.lr.set(lr); }  // NOLINT(google-explicit-constructor)

  const Betas& betas() const { return settings_.betas.value; }
  LionOptions& betas(const Betas& value) { return set(&Settings::betas, value); }
};

}  // namespace octavo::torch
