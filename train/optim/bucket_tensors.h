// Allocates the memory of gradient buckets: flat tensors of complete buckets (DDP, ZeRO-1), or the rank's
// chunks and two buffers that buckets use in turn (ZeRO-2).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/named_tensors.h"
#include "train/optim/shard_layout.h"

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo_train {

struct GradientOptions {
  std::int64_t passes = 1;      // micro-batches of a step, at most
  bool reduce_in_fp32 = false;  // else in the gradients' own type; sums of several micro-batches are fp32
  bool each_pass = false;       // ZeRO-2: each micro-batch is reduced, and only chunks are kept
};

class BucketTensors {
 public:
  using Tensors = std::vector<torch::Tensor>;

  BucketTensors(ParallelLayout layout, int rank, const NamedTensors& parameters, const GradientOptions& plan);

  [[nodiscard]] const ParallelLayout& layout() const { return layout_; }
  [[nodiscard]] std::size_t count() const { return mine_.size(); }
  [[nodiscard]] const Bucket& bucket(std::size_t number) const { return layout_.buckets()[number]; }
  // Returns the flat tensor of a bucket. If each micro-batch is reduced, it is a view of the slot's buffer
  // and valid until another bucket uses the slot.
  [[nodiscard]] torch::Tensor whole(std::size_t bucket, std::size_t slot = 0) const;
  [[nodiscard]] std::size_t slots() const { return slots_.size(); }
  // Returns views of a bucket's flat tensor, one per parameter, with the parameters' shapes and strides.
  [[nodiscard]] Tensors views(std::size_t bucket, const torch::Tensor& whole) const;
  // Returns the rank's chunk of a bucket's flat tensor.
  [[nodiscard]] torch::Tensor part(std::size_t bucket, const torch::Tensor& whole) const;
  // Returns the sums that the rank keeps: its chunk of the flat tensor, or a separate tensor (ZeRO-2).
  [[nodiscard]] const torch::Tensor& mine(std::size_t bucket) const { return mine_[bucket]; }
  // Returns the sums of the rank's piece of a parameter, in the shape of `stepped`, the tensor that the
  // optimizer steps.
  [[nodiscard]] torch::Tensor gradient(std::size_t parameter, const torch::Tensor& stepped) const;

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::int64_t slot_bytes() const { return slot_bytes_; }

 private:
  struct Shape {
    std::vector<std::int64_t> sizes, strides;
  };
  [[nodiscard]] torch::ScalarType sum_type(const Bucket& bucket) const;
  [[nodiscard]] torch::ScalarType reduce_type(const Bucket& bucket) const;

  ParallelLayout layout_;
  int rank_;
  GradientOptions plan_;
  std::vector<Shape> shapes_;  // by parameter
  Tensors whole_, mine_;       // by bucket
  Tensors slots_;
  std::int64_t bytes_ = 0, slot_bytes_ = 0;
};

}  // namespace octavo_train
