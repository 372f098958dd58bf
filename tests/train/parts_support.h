// Helpers for the tests of the trainer's parts: settings, parameters and comparisons.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"
#include "train/optim/optimizer.h"

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

using Words = std::vector<std::string>;

// Returns the default settings with these overrides (for example learning_rate=0.1).
inline Settings settings(const Words& words = {}) { return parse("", "test", words).value().settings; }
inline TrainingSettings training(const Words& words = {}) { return settings(words).training; }

// Makes three parameters: a quantized one that is not a multiple of a block, one with several dimensions, and
// a small one that is not quantized.
inline NamedTensors make_parameters(torch::ScalarType type = torch::kFloat32) {
  torch::manual_seed(7);
  NamedTensors out = {
      {"wide", torch::randn({70, 61})}, {"deep", torch::randn({3, 40, 36})}, {"small", torch::randn({33})}};
  for (auto& [name, tensor] : out) tensor = tensor.to(type).requires_grad_();
  return out;
}

inline NamedTensors copies(const NamedTensors& tensors) {
  NamedTensors out;
  for (const auto& [name, t] : tensors)
    out.emplace_back(name, t.detach().clone().requires_grad_(t.requires_grad()));
  return out;
}

inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const torch::Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.numel() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0);
}

inline bool same_bits(const NamedTensors& a, const NamedTensors& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i)
    same = a[i].first == b[i].first && same_bits(a[i].second, b[i].second);
  return same;
}

// Sets the gradients of step number `step`, multiplied by `factor`.
inline void give_gradients(const NamedTensors& parameters, std::int64_t step, double factor = 1.0) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 + step));
  for (const auto& [name, param] : parameters)
    param.mutable_grad() = (torch::randn(param.sizes()) * factor).to(param.scalar_type());
}

inline void take_steps(StepOptimizer& optimizer, const NamedTensors& parameters, std::int64_t from,
                       std::int64_t to) {
  for (std::int64_t step = from; step <= to; ++step) {
    give_gradients(parameters, step);
    optimizer.step();
  }
}

inline std::unique_ptr<StepOptimizer> make(const TrainingSettings& settings, const NamedTensors& parameters) {
  return std::make_unique<StepOptimizer>(settings, one_group(settings, parameters));
}

// Returns the message of the torch error that `fn` throws.
template <class Fn>
std::string torch_error(Fn&& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

// The output of save(), with copied tensors, as a file contains them.
struct Saved {
  NamedTensors tensors;
  nlohmann::ordered_json numbers = nlohmann::ordered_json::object();

  friend bool operator==(const Saved& a, const Saved& b) {
    return a.numbers == b.numbers && same_bits(a.tensors, b.tensors);
  }
};

inline Saved saved(const StepOptimizer& optimizer) {
  Saved out;
  optimizer.save(out.tensors, out.numbers);
  out.tensors = copies(out.tensors);
  return out;
}

}  // namespace octavo_train
