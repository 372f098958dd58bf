// A model of equal layers whose optimizer's states live somewhere: what `octavo bench offload` trains. A
// layer's forward and backward pass are copies on the device, as many as take the time asked for; its
// gradient is made on the device; its update is the library's, through the engine.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/device.h"

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
  bool take_gradients = false;  // offloaded gradients leave the device in the backward pass
  bool clip = false;            // by the norm of all gradients
  int copies = 1;               // of the forward pass of a layer; twice as many of its backward pass
  int threads = 1;
};

// The name of a residence, and the residence of a name; another one is a usage Failure.
std::string residence_name(Residence residence);
Residence parse_residence(std::string_view text);

// Copies of what a layer's passes copy that take about `ms` on the device.
int copies_for(BenchDevice& device, double ms);

class OffloadModel {
 public:
  // The device must outlive it.
  OffloadModel(BenchDevice& device, const OffloadSpec& spec);
  ~OffloadModel();
  OffloadModel(const OffloadModel&) = delete;
  OffloadModel& operator=(const OffloadModel&) = delete;

  // Forward and backward pass, and the step, whose end the next forward pass waits for, layer by layer.
  void iterate();
  // The same without a step.
  void pass();
  // Returns when nothing is under way.
  void finish();
  // Iterations whose passes are noted in the trace, layer by layer. Returns when nothing is under way.
  void trace(int iterations);

  // Of all weights. REQUIRES: finish.
  [[nodiscard]] std::uint64_t checksum() const;
  [[nodiscard]] std::int64_t device_state_bytes() const { return device_states_.size; }
  // States, and what the engine keeps: copies of weights and gradients.
  [[nodiscard]] std::int64_t host_bytes() const { return host_states_.bytes() + engine_.host_bytes(); }
  // Why host memory is not pinned; empty where it is, or where there is no GPU to pin it for.
  [[nodiscard]] std::string why_not_pinned() const;

 private:
  void place_states();
  void forward(bool wait);
  void backward(bool take);
  void step();
  void work(int copies, const char* pass, std::size_t layer);
  [[nodiscard]] bool takes() const { return spec_.take_gradients && spec_.residence != Residence::device; }
  // Memory of the device for the engine, at least `bytes` of it; what it replaces is no longer in use.
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
  std::vector<std::string> labels_;  // of pairs of the device's marks
};

}  // namespace octavo::cli
