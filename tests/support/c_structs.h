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

inline octavo_group_config c_config(const octavo::GroupConfig& config) {
  auto c = sized<octavo_group_config>();
  c.algorithm = static_cast<uint32_t>(config.algorithm);
  c.amsgrad = config.amsgrad ? 1 : 0;
  c.momentum = config.momentum ? 1 : 0;
  c.device_kind = static_cast<uint32_t>(config.device.kind);
  c.device_index = config.device.index;
  c.switches = config.switches;
  return c;
}

inline octavo_tensor c_tensor(const octavo::TensorArgs& t) {
  octavo_tensor c{};
  c.spec = sized<octavo_tensor_spec>();
  c.spec.param_dtype = static_cast<uint32_t>(t.spec.param_dtype);
  c.spec.grad_dtype = static_cast<uint32_t>(t.spec.grad_dtype);
  c.spec.store = static_cast<uint32_t>(t.spec.store);
  c.spec.format = static_cast<uint32_t>(t.spec.format);
  c.spec.ndim = t.spec.ndim;
  c.spec.numel = t.spec.numel;
  c.spec.block_size = t.spec.block_size;
  std::copy(t.spec.shape.begin(), t.spec.shape.end(), c.spec.shape);
  c.param = t.param;
  c.grad = t.grad;
  c.residual = t.residual;
  for (std::size_t slot = 0; slot < 3; ++slot) {
    c.codes[slot] = t.state[slot].codes;
    c.scales[slot] = t.state[slot].scales;
  }
  c.id = t.id;
  c.offset = t.offset;
  return c;
}

inline std::vector<octavo_tensor> c_tensors(const TensorSet& set) {
  std::vector<octavo_tensor> list;
  for (const octavo::TensorArgs& t : set.args()) list.push_back(c_tensor(t));
  return list;
}

inline octavo_step_args c_step_args(const octavo::StepArgs& args) {
  octavo_step_args c;
  octavo_step_args_init(&c);
  c.step = args.step;
  c.seed = args.seed;
  c.threads = args.threads;
  c.guard = args.guard ? 1 : 0;
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
  c.grad_factor = args.grad_factor;
  c.stream = args.stream;
  c.max_norm = args.max_norm;
  c.scalar_lr = args.scalars.lr;
  c.scalar_step = args.scalars.step;
  c.scalar_loss_scale = args.scalars.loss_scale;
  c.scalar_found_inf = args.scalars.found_inf;
  c.scalar_norm = reinterpret_cast<const octavo_device_norm*>(args.scalars.norm);
  c.scalar_report = reinterpret_cast<octavo_device_report*>(args.scalars.report);
  return c;
}

}  // namespace test
