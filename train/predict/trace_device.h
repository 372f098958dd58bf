// A GPU without memory. Its tensors are on torch's meta device: they have sizes and types, but no data. While
// a TraceDevice exists, it records each allocation and deallocation of such tensors, and each kernel that a
// GPU would run, with its bytes and its matmuls. One step of a model thus shows what a GPU would need for it.
//
// It also implements what torch lacks for meta tensors: autocast, and the shapes of a few operators
// (operators.h).
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
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

// A kernel, and the name of the operator that launched it.
struct FakeKernel {
  octavo::plan::Kernel kernel;
  std::string name;
};

class TraceDevice {
 public:
  // The device that is simulated. Models use other code paths on a CPU.
  enum class Of { gpu, cpu };
  // A process can have one TraceDevice at a time. It records the thread that creates it. Throws c10::Error if
  // another exists, or if this LibTorch does not allow operators to be intercepted.
  explicit TraceDevice(Of what = Of::gpu);
  ~TraceDevice();
  TraceDevice(const TraceDevice&) = delete;
  TraceDevice& operator=(const TraceDevice&) = delete;

  static torch::Device device() { return torch::Device(torch::kMeta); }

  // Sets the owner of memory that is allocated from now on.
  void set_owner(octavo::plan::Owner owner);
  // Changes the owner of a tensor's memory. Tensors without recorded memory are skipped.
  void set_owner_of(const torch::Tensor& tensor, octavo::plan::Owner owner);
  // Records memory that belongs to no tensor, for example of states or libraries. It is never freed.
  void add_allocation(std::int64_t bytes, octavo::plan::Owner owner);
  // Removes all events except the allocations of these tensors.
  void forget_all_but(at::TensorList kept);
  // Records a kernel that no torch operator launches.
  void add_kernel(const char* name, double bytes, std::int64_t launches);
  // Marks the kernels from `first` on as running `times` times in the step.
  void repeat_kernels(std::size_t first, std::int64_t times);
  // Sets whether new CPU tensors are created on the fake device instead, for models that are built on the
  // CPU.
  void redirect_cpu_allocations(bool on);
  // Clears autocast's cache of cast weights. Real autocast does so when its scope ends.
  static void forget_casts();

  [[nodiscard]] const std::vector<octavo::plan::Event>& events() const;
  [[nodiscard]] const std::vector<FakeKernel>& kernels() const;
  // Removes all kernels recorded so far.
  void forget_kernels();
  // Sets the GPU for which temporary memory of kernels is recorded. Without a GPU it is not recorded.
  void set_gpu(const octavo::plan::Gpu& gpu);
  // Sets the function that chooses which matmuls of a layer (forward, dgrad, wgrad) are in FP8, if the choice
  // is by time.
  void set_fp8_choice(std::function<octavo::fp8::Choice(const octavo::fp8::Layer&)> choose);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace octavo_train
