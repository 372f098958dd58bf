// The model that `octavo bench offload` trains: equal layers, with optimizer states on the device or in host
// memory. A layer's forward and backward passes are copies on the device, repeated until they take the
// requested time. Its gradient is made on the device. The library's engine updates its weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/device.h"

#include <octavo/engine.h>
#include <octavo/offload.h>

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::cli {

struct OffloadSpec {
  Residence residence = Residence::device;
  StateFormat state = StateFormat::int8;
  DType dtype = DType::bf16;  // of weights and gradients
  std::int64_t layers = 1;
  std::int64_t numel = 1;       // of each layer
  bool take_gradients = false;  // offload gradients to host memory in the backward pass
  bool clip = false;            // by the norm of all gradients
  int copies = 1;               // for the forward pass of a layer; the backward pass makes twice this number
  int threads = 1;
};

// Convert between residences and their names. An unknown name is a usage Failure.
std::string residence_name(Residence residence);
Residence parse_residence(std::string_view text);

// Returns the number of copies that take about `ms` milliseconds on the device.
int copies_for(BenchDevice& device, double ms);

class OffloadModel {
 public:
  // The device must outlive the model.
  OffloadModel(BenchDevice& device, const OffloadSpec& spec);
  ~OffloadModel();
  OffloadModel(const OffloadModel&) = delete;
  OffloadModel& operator=(const OffloadModel&) = delete;

  // Runs the forward and backward passes and the step. The next forward pass waits for the step layer by
  // layer.
  void iterate();
  // Runs the forward and backward passes without a step.
  void pass();
  // Waits until all work is complete.
  void finish();
  // Runs iterations and records their forward and backward passes in the trace, layer by layer. Waits until
  // all work is complete.
  void trace(int iterations);

  // Returns a checksum of all weights. REQUIRES: finish() has been called.
  [[nodiscard]] std::uint64_t checksum() const;
  [[nodiscard]] std::int64_t device_state_bytes() const { return device_states_.size; }
  // Returns the host memory of the states and of the engine (copies of weights and gradients).
  [[nodiscard]] std::int64_t host_bytes() const { return host_states_.bytes() + engine_.host_bytes(); }
  // Returns why host memory is not pinned. Empty if it is pinned, or if there is no GPU to pin it for.
  [[nodiscard]] std::string why_not_pinned() const;

 private:
  void place_states();
  void forward(bool wait);
  void backward(bool take);
  void step();
  void work(int copies, const char* pass, std::size_t layer);
  [[nodiscard]] bool takes() const { return spec_.take_gradients && spec_.residence != Residence::device; }
  // Grows `buffer`, which is device memory for the engine, to at least `bytes`. Waits until the replaced
  // memory is no longer in use.
  std::span<std::byte> room(Buffer& buffer, std::int64_t bytes);

  BenchDevice& device_;
  OffloadSpec spec_;
  Engine engine_;
  std::vector<std::uint32_t> handles_;
  std::vector<EngineTensor> tensors_;
  std::vector<std::int64_t> counts_;
  Buffer params_, grads_, activations_, device_states_, workspace_, staging_, norm_;
  HostMemory host_states_;
  std::vector<void*> grads_at_;
  std::uint64_t passes_ = 0;
  bool traced_ = false;
  std::vector<std::string> labels_;  // one per pair of device marks
};

}  // namespace octavo::cli
