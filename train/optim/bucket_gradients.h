// Sums gradients over ranks in buckets while backward() runs. When the last parameter of a bucket has its
// gradient, the bucket's gradients are moved into a flat tensor, and its reduction over ranks is queued to
// overlap with the rest of the backward pass.
//
// - DDP: the flat tensors are the gradients. They are reduced in the last micro-batch of a step.
// - ZeRO-1: like DDP, but each rank gets only the sums of its own chunks.
// - ZeRO-2: each micro-batch is reduced, from two buffers of one bucket each, into the rank's chunks.
//
// A parameter is ready when it gets its first gradient in a micro-batch. If its gradient comes in parts
// (train/nn/recompute.h), it is ready at the end of the micro-batch. A part that arrives after the reduction
// of its bucket has started is summed over ranks in finish(). A rank without a gradient for a parameter
// contributes zeros. Buckets are reduced in the order of the layout, so the collectives match on all ranks.
// Sums of several micro-batches are fp32, as in GradientSums; with one rank they are bit-identical to those
// of GradientSums. Hooks are called from one thread at a time, because all parameters are on one device.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/process_group.h"
#include "train/nn/named_tensors.h"
#include "train/optim/bucket_layout.h"
#include "train/optim/gradients.h"

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo_train {

struct GradientOptions {
  std::int64_t micro_batches = 1;  // micro-batches of a step, at most
  bool reduce_in_fp32 = false;     // else in the gradients' own type; sums of several micro-batches are fp32
  bool each_micro_batch = false;   // ZeRO-2: each micro-batch is reduced, and only chunks are kept
};

// The memory of gradient buckets: flat tensors of complete buckets (DDP, ZeRO-1), or the rank's chunks and
// two buffers that buckets use in turn (ZeRO-2).
class BucketTensors {
 public:
  using Tensors = std::vector<torch::Tensor>;

  BucketTensors(BucketLayout layout, int rank, const NamedTensors& parameters,
                const GradientOptions& options);

  [[nodiscard]] const BucketLayout& layout() const { return layout_; }
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

  BucketLayout layout_;
  int rank_;
  GradientOptions options_;
  std::vector<Shape> shapes_;  // by parameter
  Tensors whole_, mine_;       // by bucket
  Tensors slots_;
  std::int64_t bytes_ = 0, slot_bytes_ = 0;
};

class BucketGradients final : public Gradients {
 public:
  // `stepped`: the tensors that the optimizer steps, by parameter: the parameters themselves, or the rank's
  // pieces of them. REQUIRES: a layout of these parameters and this process group, divided if
  // options.each_micro_batch; the process group outlives this object.
  BucketGradients(ProcessGroup& process_group, BucketLayout layout, NamedTensors parameters,
                  std::vector<torch::Tensor> stepped, const GradientOptions& options);
  ~BucketGradients() override;

  void clear() override;
  void expect(std::int64_t micro_batches, std::int64_t most) override;
  void micro_batch_done() override;
  void finish() override;
  // Counts complete buckets (DDP, ZeRO-1) or the rank's chunks (ZeRO-2).
  [[nodiscard]] std::int64_t bytes() const override { return tensors_.bytes(); }
  [[nodiscard]] std::int64_t sum_bytes() const override { return tensors_.bytes() + tensors_.slot_bytes(); }
  [[nodiscard]] std::int64_t communication_bytes() const override { return tensors_.slot_bytes(); }

  // Returns the number of bucket reductions that were queued since clear(), over all micro-batches.
  [[nodiscard]] std::int64_t started() const { return started_; }

 private:
  using Tensors = BucketTensors::Tensors;
  struct Hook;
  // A queued reduction.
  struct Queued {
    Pending pending;
    torch::Tensor part, into;  // `part` is added to `into` when it is done; undefined: it is in place
    bool first = false;        // the first of the step: `part` replaces `into`
    void done();
  };

  [[nodiscard]] bool starts_now() const { return options_.each_micro_batch || done_ + 1 == micro_batches_; }
  void arm();
  void came(std::size_t parameter);
  [[nodiscard]] bool adds_up(std::size_t parameter) const;
  void move(std::size_t bucket, const Tensors& into);
  Pending reduce(std::size_t bucket, const torch::Tensor& part, const torch::Tensor& whole);
  void start(std::size_t bucket);
  void start_all();
  void agree_on_gradients(std::vector<bool>& late);
  void reduce_late(std::size_t bucket);

  ProcessGroup& process_group_;
  GradientOptions options_;
  NamedTensors parameters_;
  BucketTensors tensors_;
  Tensors stepped_, given_;     // by parameter; `given_`: gradients that finish() sets
  std::vector<Tensors> views_;  // by bucket; empty if each micro-batch is reduced
  std::vector<Queued> queued_;  // by bucket, or by slot

  // State of the current step.
  std::int64_t micro_batches_ = 0, most_ = 0, done_ = 0, started_ = 0;
  std::size_t next_ = 0;      // the bucket to start next
  std::vector<bool> filled_;  // by parameter: its range of the flat tensor has a gradient
  std::vector<bool> had_;     // by parameter: it had a gradient in this step
  // State of the current micro-batch.
  std::vector<bool> came_;            // by parameter: it is ready
  std::vector<std::size_t> waiting_;  // by bucket: number of parameters that are not ready
};

}  // namespace octavo_train
