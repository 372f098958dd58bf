// Gradients that several ranks sum in buckets while backward() runs: a bucket's gradients are moved into a
// flat tensor when its last parameter has one, and the sum over ranks is queued beside the rest of the pass.
//
// - DDP: the flat tensors are the gradients. They are reduced in the last pass of a step.
// - ZeRO-1: likewise, but each rank gets the sums of its own chunks alone.
// - ZeRO-2: each pass is reduced, from two tensors of one bucket, into the chunks of the rank.
//
// A parameter is ready when it gets its first gradient in a pass; one whose gradient comes in parts
// (recompute.h) waits for the end of the pass. A part that comes when its bucket has gone is summed over
// ranks in finish(). Where a rank has no gradient for a parameter, it gives zeros. Buckets go in their order,
// so all ranks do the same. Sums of several passes are fp32, as those of one process are, and so are those of
// one rank in bits. Hooks come from one thread at a time, because all parameters are on one device.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/world.h"
#include "train/optim/bucket_tensors.h"
#include "train/optim/gradients.h"

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo::train {

class BucketGradients final : public Gradients {
 public:
  // `stepped`: what the optimizer steps, by parameter: the parameters themselves, or the rank's pieces of
  // them. REQUIRES: a layout of these parameters and this world, which outlives this; a divided one for
  // each_pass.
  BucketGradients(World& world, ParallelLayout layout, NamedTensors parameters,
                  std::vector<torch::Tensor> stepped, const GradientPlan& plan);
  ~BucketGradients() override;

  void clear() override;
  void expect(std::int64_t passes, std::int64_t most) override;
  void pass_done() override;
  void finish() override;
  // Of whole buckets, or of the rank's chunks.
  [[nodiscard]] std::int64_t bytes() const override { return tensors_.bytes(); }
  [[nodiscard]] std::int64_t sum_bytes() const override { return tensors_.bytes() + tensors_.slot_bytes(); }
  [[nodiscard]] std::int64_t communication_bytes() const override { return tensors_.slot_bytes(); }

  // Buckets whose reduction was queued since clear(), in all passes.
  [[nodiscard]] std::int64_t started() const { return started_; }

 private:
  using Tensors = BucketTensors::Tensors;
  struct Hook;
  // A reduction that is queued.
  struct Queued {
    Pending pending;
    torch::Tensor part, into;  // what is added to what when it is done; undefined: it is in place
    bool first = false;        // of the step: it replaces what is there
    void done();
  };

  [[nodiscard]] bool starts_now() const { return plan_.each_pass || done_ + 1 == passes_; }
  void arm();
  void came(std::size_t parameter);
  [[nodiscard]] bool adds_up(std::size_t parameter) const;
  void move(std::size_t bucket, const Tensors& into);
  Pending reduce(std::size_t bucket, const torch::Tensor& part, const torch::Tensor& whole);
  void start(std::size_t bucket);
  void start_all();
  void agree_on_gradients(std::vector<bool>& late);
  void reduce_late(std::size_t bucket);

  World& world_;
  GradientPlan plan_;
  NamedTensors parameters_;
  BucketTensors tensors_;
  Tensors stepped_, given_;     // by parameter; what finish() gives as gradients
  std::vector<Tensors> views_;  // by bucket; none where each pass is reduced
  std::vector<Queued> queued_;  // by bucket, or by slot

  // The step.
  std::int64_t passes_ = 0, most_ = 0, done_ = 0, started_ = 0;
  std::size_t next_ = 0;      // the bucket to start next
  std::vector<bool> filled_;  // by parameter: its part of the flat tensor has a gradient
  std::vector<bool> had_;     // by parameter: it had a gradient
  // The pass.
  std::vector<bool> came_;            // by parameter
  std::vector<std::size_t> waiting_;  // by bucket: parameters that have not come
};

}  // namespace octavo::train
