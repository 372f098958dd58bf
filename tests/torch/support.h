// Parameters, gradients and comparisons for the tests of the LibTorch adapter.
// SPDX-License-Identifier: MIT
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <octavo/torch/optim.h>
#include <octavo/types.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace test {

using Tensors = std::vector<torch::Tensor>;
using octavo::torch::AdamOptions;
using octavo::torch::AdamWOptions;
using octavo::torch::LionOptions;
using octavo::torch::SGDOptions;
using ParamGroup = torch::optim::OptimizerParamGroup;

// Every state format of the library.
inline const std::vector<std::string>& formats() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const octavo::StateFormat format : octavo::all_state_formats())
      names.emplace_back(octavo::name(format));
    return names;
  }();
  return all;
}

// Large enough to be quantized, not a multiple of a block; and a small one.
inline Tensors make_params(torch::ScalarType type = torch::kFloat32) {
  torch::manual_seed(7);
  Tensors params = {torch::randn({70, 61}), torch::randn({33})};
  for (torch::Tensor& p : params) p = p.to(type).requires_grad_();
  return params;
}

inline torch::Tensor gradient(const torch::Tensor& param, std::int64_t seed) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 + seed));
  return torch::randn(param.sizes()).to(param.options().requires_grad(false));
}

// A loss whose gradients are these.
inline torch::Tensor loss_of(const Tensors& params, std::int64_t step) {
  torch::Tensor loss = torch::zeros({}, params[0].options().dtype(torch::kFloat32).requires_grad(false));
  for (std::size_t i = 0; i < params.size(); ++i) {
    const torch::Tensor grad = gradient(params[i], 10 * step + static_cast<std::int64_t>(i));
    loss = loss + (params[i] * grad).sum().to(torch::kFloat32);
  }
  return loss;
}

// Fresh tensors every time, as after zero_grad.
inline void give_gradients(const Tensors& params, std::int64_t step) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    params[i].mutable_grad() = gradient(params[i], 10 * step + static_cast<std::int64_t>(i));
  }
}

inline void run(octavo::torch::Optimizer& optimizer, const Tensors& params, std::int64_t from,
                std::int64_t to) {
  for (std::int64_t step = from; step <= to; ++step) {
    give_gradients(params, step);
    optimizer.step();
  }
}

inline Tensors copies(const Tensors& tensors) {
  Tensors out;
  for (const torch::Tensor& t : tensors) out.push_back(t.detach().clone().requires_grad_(t.requires_grad()));
  return out;
}

inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const torch::Tensor x = a.detach().cpu().contiguous(), y = b.detach().cpu().contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.numel() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0);
}

inline bool same_bits(const Tensors& a, const Tensors& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = same_bits(a[i], b[i]);
  return same;
}

// Every tensor of the optimizer's state, in order.
inline Tensors states(const octavo::torch::Optimizer& optimizer) {
  Tensors out;
  for (const ParamGroup& group : optimizer.param_groups()) {
    for (const torch::Tensor& param : group.params()) {
      const octavo::torch::ParamState* state = optimizer.state_of(param);
      if (state == nullptr) continue;
      out.push_back(torch::tensor(state->step()));
      octavo::torch::ParamState::each(*state, [&](const std::string&, const torch::Tensor& t) {
        if (t.defined()) out.push_back(t.clone());
      });
    }
  }
  return out;
}

// The message of the c10::Error that f throws.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

}  // namespace test
