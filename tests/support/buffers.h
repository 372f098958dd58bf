// Memory for a group of tensors as a caller would own it: exact sizes, aligned to one element only, with
// guard bytes around each buffer. A copy of a TensorSet is an independent state.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace test {

// A buffer of `bytes` bytes that starts `phase` bytes after a 64-byte boundary. The guard bytes around it
// must not change.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t bytes, std::int64_t phase = 0);
  Buffer(const Buffer& other);
  Buffer& operator=(const Buffer& other);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
  [[nodiscard]] bool surroundings_intact() const;

 private:
  void allocate();

  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
  std::int64_t phase_ = 0;
};

struct TensorBuffers {
  octavo::TensorSpec spec;
  octavo::TensorLayout layout;
  std::uint64_t id = 0;
  std::int64_t offset = 0;
  Buffer param, grad, residual;
  std::array<Buffer, octavo::kMaxSlots> codes, scales;

  [[nodiscard]] octavo::TensorArgs args() const;
};

// The tensors of one group. Gradients belong to it too, so that copies see the same ones.
class TensorSet {
 public:
  TensorSet(const octavo::GroupConfig& config, std::span<const octavo::TensorSpec> specs, std::uint64_t seed);

  [[nodiscard]] const octavo::GroupConfig& config() const { return config_; }
  [[nodiscard]] std::vector<TensorBuffers>& tensors() { return tensors_; }
  [[nodiscard]] const std::vector<TensorBuffers>& tensors() const { return tensors_; }
  [[nodiscard]] std::vector<octavo::TensorArgs> args() const;

  // Fills in new gradients. `special` mixes in NaN, infinities, denormals and huge values, each rare.
  void fill_grads(std::uint64_t seed, bool special = false);
  void fill_params(std::uint64_t seed);

  octavo::Result<octavo::StepReport> step(const octavo::StepArgs& args);

  // Returns "" if all parameters, residuals and states are equal in bytes and no guard byte changed;
  // otherwise what differs.
  [[nodiscard]] std::string difference(const TensorSet& other) const;
  [[nodiscard]] std::uint64_t hash() const;  // hashes the same bytes

 private:
  octavo::GroupConfig config_;
  std::vector<TensorBuffers> tensors_;
};

// Makes a Group and steps it once.
octavo::Result<octavo::StepReport> step(const octavo::GroupConfig& config,
                                        std::span<const octavo::TensorArgs> tensors,
                                        const octavo::StepArgs& args);

octavo::TensorSpec tensor_spec(std::int64_t numel, octavo::DType param, octavo::DType grad,
                               octavo::WeightStore store, octavo::StateFormat format,
                               std::int64_t block_size = 0);

// Gives a number of elements two or more dimensions, so that rank-1 scales are tested.
void give_shape(octavo::TensorSpec& spec);

}  // namespace test
