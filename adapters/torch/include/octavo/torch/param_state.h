// The state of one parameter: its step count, moments, scales and master bits, and in which format they are.
// Tensors are flat, in the order in which the parameter lies in memory, and zero bytes at first. A state
// keeps the format that it was made with, whatever its group's options say later.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/native.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <array>
#include <cstdint>
#include <string>

namespace octavo::torch {

constexpr std::size_t kSlots = 3;  // the most moments that an algorithm keeps

class ParamState : public ::torch::optim::OptimizerCloneableParamState<ParamState> {
 public:
  // Steps taken; waits for the device where the count is there (with the guard).
  std::int64_t step() const { return count.defined() ? count.item<std::int64_t>() : 0; }

  ::torch::Tensor count;  // int64; a tensor of this parameter alone
  std::array<::torch::Tensor, kSlots> codes, scales;
  ::torch::Tensor master;
  std::string format;  // empty: there are no moments yet
  std::int64_t block_size = 0;

  // Bytes of moments, scales and master bits.
  std::int64_t bytes() const {
    std::int64_t total = master.defined() ? static_cast<std::int64_t>(master.nbytes()) : 0;
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      if (codes[slot].defined()) total += static_cast<std::int64_t>(codes[slot].nbytes());
      if (scales[slot].defined()) total += static_cast<std::int64_t>(scales[slot].nbytes());
    }
    return total;
  }

  // Calls f(name, tensor) for each tensor but the count.
  template <class Self, class F>
  static void each(Self& self, F&& f) {
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      f("moment_" + std::to_string(slot), self.codes[slot]);
      f("moment_" + std::to_string(slot) + "_scale", self.scales[slot]);
    }
    f(std::string("master"), self.master);
  }

  void serialize(::torch::serialize::OutputArchive& archive) const override {
    archive.write("step", c10::IValue(step()));
    archive.write("format", c10::IValue(format));
    archive.write("block_size", c10::IValue(block_size));
    each(*this, [&](const std::string& name, const ::torch::Tensor& tensor) {
      if (tensor.defined()) archive.write(name, tensor, /*is_buffer=*/true);
    });
  }
  void serialize(::torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("step", value);
    count = ::torch::tensor(value.toInt(), ::torch::kInt64);
    archive.read("format", value);
    format = value.toStringRef();
    archive.read("block_size", value);
    block_size = value.toInt();
    each(*this, [&](const std::string& name, ::torch::Tensor& tensor) {
      ::torch::Tensor found;
      if (archive.try_read(name, found, /*is_buffer=*/true)) tensor = found;
    });
  }
};

}  // namespace octavo::torch
