// A GPU without memory: tensors of torch's meta device have sizes and types, and nothing is computed on them.
// While a FakeDevice lives, every allocation of theirs is recorded when it begins and when it ends, and every
// kernel that a GPU would run, with its bytes and its products. So one step of a model says what a GPU would
// need for it.
//
// It also gives such tensors what torch leaves out for them: autocast, and shapes of a few operators.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/fake.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <octavo/fp8_layer.h>
#include <octavo/plan.h>
#include <torch/library.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

// A kernel, and what launched it.
struct FakeKernel {
  octavo::plan::Kernel kernel;
  std::string name;
};

class FakeDevice {
 public:
  // What its tensors stand for: models choose other ways to compute on a CPU.
  enum class Of { gpu, cpu };
  // One at a time in a process; for the thread that makes it. Throws c10::Error where this LibTorch does not
  // let operators be watched.
  explicit FakeDevice(Of what = Of::gpu);
  ~FakeDevice();
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  static ::torch::Device device() { return ::torch::Device(::torch::kMeta); }

  // Whose memory is allocated from now on.
  void set_owner(octavo::plan::Owner owner);
  // Gives memory that was allocated before an owner. A tensor without memory is left out.
  void give(const ::torch::Tensor& tensor, octavo::plan::Owner owner);
  // Memory that no tensor has: of states, of libraries. It stays.
  void take(std::int64_t bytes, octavo::plan::Owner owner);
  // Forgets all memory but that of these tensors: the events are theirs.
  void settle(at::TensorList kept);
  // A kernel that no operator of torch launches.
  void add_kernel(const char* name, double bytes, std::int64_t launches);
  // The kernels from `first` on run `times` times in the step.
  void repeat_kernels(std::size_t first, std::int64_t times);
  // Whether new tensors of the CPU are made here instead: for models that are built there.
  void catch_cpu(bool on);

  [[nodiscard]] const std::vector<octavo::plan::Event>& events() const;
  [[nodiscard]] const std::vector<FakeKernel>& kernels() const;
  // From here on kernels count: those before are forgotten.
  void forget_kernels();
  // The GPU whose kernels' own memory is counted; without one it is not.
  void set_gpu(const octavo::plan::Gpu& gpu);
  // How passes in FP8 are chosen where time would decide.
  void set_fp8_choice(std::function<octavo::fp8::Choice(const octavo::fp8::Layer&)> choose);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace octavo::train
