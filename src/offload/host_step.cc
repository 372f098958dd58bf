// The step on the CPU of tensors whose states and copies of weights are in host memory. It is cut in jobs of
// some tensors each, so that gradients that still come down, the CPU's work and weights that go up overlap.
//
// A job of the host's queue steps its tensors and then queues their weights on `up`. It owns all that it
// reads, so this object may be gone when it runs.
// SPDX-License-Identifier: MIT
#include "cpu/threads.h"
#include "offload/host_threads.h"
#include "offload/offloaded_step.h"

#include <algorithm>
#include <numeric>

namespace octavo::offload {
namespace {

struct Weight {
  void* to;
  const void* from;
  std::int64_t bytes;
};

struct Job {
  std::vector<std::size_t> tensors;  // of the step
  std::vector<Weight> weights;
  std::vector<std::int64_t*> counts;
  std::unique_ptr<StepBackend> cpu;
  std::vector<std::byte> workspace;

  // On the host's queue.
  Status run(StepArgs args, std::span<const void* const> grads, Queue& up, const Fence& caller, Fence& done) {
    if (Status bad = cpu->bind_grads(grads); !bad.ok()) return bad;
    args.step = *counts[0] + 1;
    args.workspace = workspace;
    args.stream = nullptr;
    args.threads = host_threads(args.threads);
    args.scalars.step = nullptr;
    args.scalars.report = nullptr;
    const auto report = cpu->step(args);
    if (!report.ok()) return report.status();
    if (!report->skipped) {
      for (std::int64_t* count : counts) ++*count;
      // What the caller had queued before the step may read the old weights.
      if (Status bad = up.order_after(caller); !bad.ok()) return bad;
      for (const Weight& weight : weights) {
        if (Status bad = up.copy(weight.to, weight.from, weight.bytes, "weights up"); !bad.ok()) return bad;
      }
    }
    auto fence = up.record_fence();
    if (fence.ok()) done = *fence;
    return fence.status();
  }
};

class HostStep final : public OffloadedStep {
 public:
  HostStep(DeviceQueues& queues, std::size_t tensors)
      : queues_(queues), held_(tensors), complete_(tensors), weights_(tensors), gradients_(tensors) {}

  Status bind(const GroupConfig& config, std::span<const OffloadedTensor> tensors,
              std::span<std::int64_t* const> counts, std::int64_t most) {
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return tensors[i].order; });
    std::int64_t elements = 0;
    for (const std::size_t i : order) {
      const std::int64_t numel = tensors[i].args.spec.numel;
      if (jobs_.empty() || elements + numel > most) {
        jobs_.push_back(std::make_shared<Job>());
        elements = 0;
      }
      elements += numel;
      jobs_.back()->tensors.push_back(i);
    }
    GroupConfig own = config;
    own.device = {};
    for (const auto& job : jobs_) {
      std::vector<TensorArgs> args;
      for (const std::size_t i : job->tensors) {
        TensorArgs& one = args.emplace_back(tensors[i].args);
        const std::int64_t bytes = one.spec.numel * dtype_bytes(one.spec.param_dtype);
        if (bytes > 0) job->weights.push_back({one.param, tensors[i].host_param, bytes});
        one.param = tensors[i].host_param;
        job->counts.push_back(counts[i]);
      }
      auto made = make_cpu_step(own, args);
      if (!made.ok()) return made.status();
      job->cpu = std::move(*made);
      job->workspace.resize(static_cast<std::size_t>(job->cpu->workspace_bytes()));
    }
    return {};
  }

  Status bind_grads(std::span<const void* const> /*grads*/) override { return {}; }  // all are held

  void prepare(const Call& call) override {
    caller_ = call.caller;
    scalars_ = call.scalars;
    held_.assign(call.held.begin(), call.held.end());
    complete_.assign(call.complete.begin(), call.complete.end());
    complete_.resize(held_.size());
  }

  Result<StepReport> step(const StepArgs& args) override {
    Queue& host = queues_.host();
    const auto awake = std::make_shared<const cpu::StayAwake>();  // until the last job has run
    if (Status bad = host.order_after(scalars_); !bad.ok()) return bad;
    const Fence::State* last = nullptr;
    for (const auto& job : jobs_) {
      std::vector<const void*> grads;
      grads.reserve(job->tensors.size());
      for (const std::size_t i : job->tensors) {
        grads.push_back(held_[i]);
        if (complete_[i].state() == last) continue;
        last = complete_[i].state();
        if (Status bad = host.order_after(complete_[i]); !bad.ok()) return bad;
      }
      auto done = std::make_shared<Fence>();
      auto work = [job, awake, args, grads = std::move(grads), &up = queues_.up(), caller = caller_,
                   done](void* /*stream*/) { return job->run(args, grads, up, caller, *done); };
      if (Status bad = host.run(std::move(work), "cpu step"); !bad.ok()) return bad;
      auto queued = host.record_fence();
      if (!queued.ok()) return queued.status();
      for (const std::size_t i : job->tensors) {
        weights_[i] = {*queued, done};
        gradients_[i] = {*queued, nullptr};
      }
    }
    return StepReport{};
  }

  [[nodiscard]] std::int64_t workspace_bytes() const override { return 0; }
  [[nodiscard]] std::int64_t staging_bytes() const override { return 0; }
  [[nodiscard]] const PendingFence& weight(std::size_t tensor) const override { return weights_[tensor]; }
  [[nodiscard]] const PendingFence& gradient(std::size_t tensor) const override { return gradients_[tensor]; }

 private:
  DeviceQueues& queues_;
  std::vector<std::shared_ptr<Job>> jobs_;
  std::vector<const void*> held_;
  std::vector<Fence> complete_;
  Fence caller_, scalars_;
  std::vector<PendingFence> weights_, gradients_;
};

}  // namespace

Result<std::unique_ptr<OffloadedStep>> make_host_step(const GroupConfig& config,
                                                      std::span<const OffloadedTensor> tensors,
                                                      DeviceQueues& queues,
                                                      std::span<std::int64_t* const> counts,
                                                      std::int64_t job) {
  auto step = std::make_unique<HostStep>(queues, tensors.size());
  if (Status bad = step->bind(config, tensors, counts, job); !bad.ok()) return bad;
  return std::unique_ptr<OffloadedStep>(std::move(step));
}

}  // namespace octavo::offload
