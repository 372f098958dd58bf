// The step on the CPU of tensors whose states are in host memory, with copies of their parameters. It is
// divided into jobs of some tensors each, so that gradients on their way down, the CPU's work and weights on
// their way up overlap.
//
// A job of the host queue steps its tensors and then enqueues the copies of their weights on `up`. The job
// owns everything that it reads, so the HostStep may be destroyed before the job runs.
// SPDX-License-Identifier: MIT
#include "cpu/threads.h"
#include "offload/host_limits.h"
#include "offload/offloaded_step.h"
#include "optimizers/backend.h"

#include <algorithm>
#include <numeric>

namespace octavo::offload {
namespace {

struct WeightCopy {
  void* to;
  const void* from;
  std::int64_t bytes;
};

struct Job {
  std::vector<std::size_t> tensors;  // numbers of the step's tensors
  std::vector<WeightCopy> weights;
  std::vector<std::int64_t*> counts;
  std::unique_ptr<StepBackend> cpu;
  std::vector<std::byte> workspace;

  // Runs on the host queue. `done` receives the fence of the weights.
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
      // Work that the caller queued before the step may read the old weights.
      if (Status bad = up.order_after(caller); !bad.ok()) return bad;
      for (const WeightCopy& weight : weights) {
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
  explicit HostStep(DeviceQueues& queues) : queues_(queues) {}

  Status make(const GroupConfig& config, std::span<const StepTensor> tensors,
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
    GroupConfig cpu_config = config;
    cpu_config.device = {};
    for (const auto& job : jobs_) {
      std::vector<TensorArgs> args;
      for (const std::size_t i : job->tensors) {
        TensorArgs& one = args.emplace_back(tensors[i].args);
        const std::int64_t bytes = one.spec.numel * dtype_bytes(one.spec.param_dtype);
        if (bytes > 0) job->weights.push_back({one.param, tensors[i].host_param, bytes});
        one.param = tensors[i].host_param;
        job->counts.push_back(counts[i]);
      }
      auto made = make_cpu_step(cpu_config, args);
      if (!made.ok()) return made.status();
      job->cpu = std::move(*made);
      job->workspace.resize(static_cast<std::size_t>(job->cpu->workspace_bytes()));
    }
    return {};
  }

  Result<StepResult> step(const StepCall& call) override {
    Queue& host = queues_.host();
    StepResult result{{}, std::vector<TensorFences>(call.grads.size())};
    const auto awake = std::make_shared<const cpu::StayAwake>();  // until the last job has run
    if (Status bad = host.order_after(call.scalars); !bad.ok()) return bad;
    const Fence::State* last = nullptr;
    for (const auto& job : jobs_) {
      std::vector<const void*> grads;
      grads.reserve(job->tensors.size());
      for (const std::size_t i : job->tensors) {
        const Fence& complete = call.grads[i].complete;
        grads.push_back(call.grads[i].data);
        if (complete.state() == last) continue;
        last = complete.state();
        if (Status bad = host.order_after(complete); !bad.ok()) return bad;
      }
      auto done = std::make_shared<Fence>();
      auto work = [job, awake, args = call.args, grads = std::move(grads), &up = queues_.up(),
                   caller = call.caller,
                   done](void* /*stream*/) { return job->run(args, grads, up, caller, *done); };
      if (Status bad = host.run(std::move(work), "cpu step"); !bad.ok()) return bad;
      auto queued = host.record_fence();
      if (!queued.ok()) return queued.status();
      for (const std::size_t i : job->tensors) result.tensors[i] = {{*queued, done}, {*queued, nullptr}};
    }
    return result;
  }

  [[nodiscard]] std::int64_t staging_bytes(bool /*host_grads*/) const override {
    return Staging::kHeadBytes;  // for scalars
  }

 private:
  DeviceQueues& queues_;
  std::vector<std::shared_ptr<Job>> jobs_;
};

}  // namespace

Result<std::unique_ptr<OffloadedStep>> make_host_step(const GroupConfig& config,
                                                      std::span<const StepTensor> tensors,
                                                      DeviceQueues& queues,
                                                      std::span<std::int64_t* const> counts,
                                                      std::int64_t job) {
  auto step = std::make_unique<HostStep>(queues);
  if (Status bad = step->make(config, tensors, counts, job); !bad.ok()) return bad;
  return std::unique_ptr<OffloadedStep>(std::move(step));
}

}  // namespace octavo::offload
