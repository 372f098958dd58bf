// Converts structs of the C++ API to those of the C ABI.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/support/buffers.h"

#include <octavo/octavo.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace test {

template <class T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

inline octavo_tensor_spec c_spec(const octavo::TensorSpec& spec) {
  auto c = sized<octavo_tensor_spec>();
  c.param_dtype = static_cast<uint32_t>(spec.param_dtype);
  c.store = static_cast<uint32_t>(spec.store);
  c.format = static_cast<uint32_t>(spec.format);
  c.ndim = spec.ndim;
  c.numel = spec.numel;
  c.block_size = spec.block_size;
  std::copy(spec.shape.begin(), spec.shape.end(), c.shape);
  return c;
}

inline octavo_engine_tensor c_tensor(const octavo::TensorArgs& t, int64_t* step) {
  auto c = sized<octavo_engine_tensor>();
  const octavo_tensor_spec spec = c_spec(t.spec);
  c.param_dtype = spec.param_dtype;
  c.store = spec.store;
  c.format = spec.format;
  c.ndim = spec.ndim;
  c.numel = spec.numel;
  c.block_size = spec.block_size;
  std::copy(std::begin(spec.shape), std::end(spec.shape), c.shape);
  c.param = t.param;
  c.residual = t.residual;
  for (std::size_t slot = 0; slot < 3; ++slot) {
    c.codes[slot] = t.state[slot].codes;
    c.scales[slot] = t.state[slot].scales;
  }
  c.id = t.id;
  c.offset = t.offset;
  c.step = step;
  return c;
}

// The options of a step: everything that does not belong to one step.
inline octavo_step_args c_step_args(const octavo::StepArgs& args) {
  auto c = sized<octavo_step_args>();
  c.seed = args.seed;
  c.lr = args.hyper.lr;
  c.beta1 = args.hyper.beta1;
  c.beta2 = args.hyper.beta2;
  c.eps = args.hyper.eps;
  c.weight_decay = args.hyper.weight_decay;
  c.momentum = args.hyper.momentum;
  c.dampening = args.hyper.dampening;
  c.nesterov = args.hyper.nesterov ? 1 : 0;
  c.maximize = args.hyper.maximize ? 1 : 0;
  c.decay = static_cast<uint32_t>(args.hyper.decay);
  std::copy(std::begin(args.hyper.own), std::end(args.hyper.own), c.own);
  c.clip_grad_norm = args.clip_grad_norm;
  c.scalar_lr = args.scalars.lr;
  return c;
}

}  // namespace test
