// The multi-tensor step on the CPU: tensors are cut into runs of whole blocks, and threads take runs.
// SPDX-License-Identifier: MIT
#include "cpu/implementations.h"
#include "cpu/kernels.h"
#include "cpu/threads.h"
#include "formula/decide.h"
#include "optimizers/backend.h"
#include "optimizers/resolve.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

namespace octavo {
namespace {

using cpu::kRun;

struct Run {
  std::size_t tensor;
  std::int64_t begin, count;
};

struct Tensor {
  TensorArgs args;
  StateFormat stored;
  std::int64_t block;
  std::array<std::int64_t, kMaxSlots> workspace_at{};  // floats from the workspace's start; axis scales only
  bool axes = false;
  std::size_t first_run = 0, runs = 0;
  float ratio = 1.0F;  // in this step, where the rule measures
};

template <class>
struct ConstsOf;
template <class... Algo>
struct ConstsOf<TypeList<Algo...>> {
  // Algorithms may share a type; a variant of unique types would need more machinery than a union of sizes.
  alignas(16) std::byte bytes[std::max({sizeof(typename Algo::Consts)...})];
};

// What every run of a step reads.
struct Step {
  const StepArgs& args;
  std::int64_t step;   // args.step, or the caller's counter
  const void* consts;  // the algorithm's Consts
};

class CpuStep final : public StepBackend {
 public:
  CpuStep(const GroupConfig& config, std::span<const TensorArgs> tensors)
      : config_(config), algorithm_(algorithm_index(config)), slots_(slots_of(algorithm_)) {
    tensors_.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorSpec& spec = tensors[i].spec;
      Tensor t{tensors[i], stored_format(spec.format, spec.ndim), block_of(spec.format, spec.block_size)};
      for (std::size_t s = 0; s < slot_count(); ++s) {
        if (!has_axis_scales(t.stored, slots_.moment[s])) continue;
        t.axes = true;
        t.workspace_at[s] = workspace_floats_;
        workspace_floats_ += cpu::axis_maxima_count({spec.shape.data(), spec.ndim});
      }
      t.first_run = runs_.size();
      for (std::int64_t at = 0; at < spec.numel; at += kRun) {
        runs_.push_back({i, at, std::min(kRun, spec.numel - at)});
      }
      t.runs = runs_.size() - t.first_run;
      tensors_.push_back(t);
    }
  }

  Status bind_grads(std::span<const void* const> grads) override {
    for (std::size_t i = 0; i < grads.size(); ++i) tensors_[i].args.grad = grads[i];
    return {};
  }

  Result<StepReport> step(const StepArgs& args) override {
    const auto kernels = cpu::kernels();
    if (!kernels.ok()) return kernels.status();

    const cpu::FloatMode mode;
    const formula::Order order = formula::order_of(describe(config_.algorithm)->decay, args);
    const std::int64_t counted =
        formula::must_count(order) ? count_nonfinite(**kernels, formula::unscale_of(order), args.threads) : 0;
    const formula::Decision decision = formula::decide(order, counted);
    if (decision.report.skipped) {
      formula::publish(order, decision);
      return decision.report;
    }
    const auto consts = constants(order, decision);
    const Step now{args, decision.step, consts.bytes};
    if (kRuleFacts[algorithm_].passes > 1) measure(**kernels, now);
    if (workspace_floats_ > 0) {
      std::memset(args.workspace.data(), 0, static_cast<std::size_t>(workspace_bytes()));
      pass(**kernels, now, true);
    }
    pass(**kernels, now, false);
    if (workspace_floats_ > 0) publish_axes(args);
    formula::publish(order, decision);
    return decision.report;
  }

  [[nodiscard]] std::int64_t workspace_bytes() const override { return 4 * workspace_floats_; }

 private:
  [[nodiscard]] std::size_t slot_count() const { return static_cast<std::size_t>(slots_.count); }

  [[nodiscard]] ConstsOf<Algorithms> constants(const formula::Order& order,
                                               const formula::Decision& decision) const {
    ConstsOf<Algorithms> out{};
    at_index(Algorithms{}, algorithm_, [&](auto algo) {
      using A = decltype(algo);
      new (out.bytes) typename A::Consts(formula::constants<A>(order, decision));
      return 0;
    });
    return out;
  }

  [[nodiscard]] cpu::StepTask task(const Run& run, const Step& now, bool measure,
                                   cpu::Scratch& scratch) const {
    const Tensor& t = tensors_[run.tensor];
    const TensorSpec& spec = t.args.spec;
    const auto key = [&](std::size_t stream) {
      return formula::round_key(now.args.seed, static_cast<std::uint64_t>(now.step), t.args.id,
                                static_cast<std::uint32_t>(stream));
    };
    cpu::StepTask task{};
    task.param = t.args.param;
    task.grad = t.args.grad;
    task.residual = t.args.residual;
    auto* workspace = reinterpret_cast<float*>(now.args.workspace.data());
    for (std::size_t s = 0; s < slot_count(); ++s) {
      task.codes[s] = t.args.state[s].codes;
      task.scales_in[s] = t.args.state[s].scales;
      const bool own = has_axis_scales(t.stored, slots_.moment[s]);
      task.scales_out[s] = own ? workspace + t.workspace_at[s] : t.args.state[s].scales;
      task.keys[1 + s] = key(1 + s);
    }
    task.keys[0] = key(0);
    task.param_dtype = spec.param_dtype;
    task.grad_dtype = spec.grad_dtype;
    task.store = spec.store;
    task.begin = run.begin;
    task.count = run.count;
    task.block = t.block;
    task.index = static_cast<std::uint64_t>(t.args.offset + run.begin);
    task.shape = {spec.shape.data(), spec.ndim};
    task.measure = measure;
    task.ratio = t.ratio;
    task.consts = now.consts;
    task.scratch = &scratch;
    return task;
  }

  // Elements whose scaled gradient, or its square, is not finite.
  std::int64_t count_nonfinite(const cpu::Kernels& kernels, double factor, int threads) const {
    std::atomic<std::int64_t> total{0};
    auto body = [&](std::int64_t i, cpu::Scratch& scratch) {
      const Run& run = runs_[static_cast<std::size_t>(i)];
      const TensorArgs& t = tensors_[run.tensor].args;
      const cpu::NormPart part =
          kernels.norm(t.grad, t.spec.grad_dtype, run.begin, run.count, static_cast<float>(factor), &scratch);
      if (part.nonfinite != 0) total.fetch_add(part.nonfinite, std::memory_order_relaxed);
    };
    cpu::parallel_for(static_cast<std::int64_t>(runs_.size()), threads, body);
    return total;
  }

  // The first of two passes: the sums of every run, then of every tensor, then its ratio.
  void measure(const cpu::Kernels& kernels, const Step& now) {
    sums_.resize(runs_.size());
    auto body = [&](std::int64_t i, cpu::Scratch& scratch) {
      const auto index = static_cast<std::size_t>(i);
      const Run& run = runs_[index];
      cpu::StepTask one = task(run, now, false, scratch);
      one.sums = &sums_[index];
      kernels.step[algorithm_][static_cast<std::size_t>(tensors_[run.tensor].stored)](one);
    };
    cpu::parallel_for(static_cast<std::int64_t>(runs_.size()), now.args.threads, body);
    totals_.assign(tensors_.size(), {0.0, 0.0});
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& t = tensors_[i];
      if (t.runs == 0) continue;
      totals_[i] = formula::tree_sum(sums_.data() + t.first_run, static_cast<std::int64_t>(t.runs));
    }
    if (const SumHook& hook = now.args.sums; hook.add != nullptr) {
      static_assert(sizeof(formula::Sums) == 2 * sizeof(double));
      hook.add(hook.context, &totals_.data()->weight, 2 * static_cast<std::int64_t>(totals_.size()), nullptr);
    }
    at_index(Algorithms{}, algorithm_, [&](auto algo) {
      using A = decltype(algo);
      if constexpr (formula::kMeasures<A>) {
        const auto& consts = *static_cast<const typename A::Consts*>(now.consts);
        for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].ratio = A::ratio(consts, totals_[i]);
      }
      return 0;
    });
  }

  void pass(const cpu::Kernels& kernels, const Step& now, bool measure) const {
    auto body = [&](std::int64_t i, cpu::Scratch& scratch) {
      const Run& run = runs_[static_cast<std::size_t>(i)];
      const Tensor& t = tensors_[run.tensor];
      if (measure && !t.axes) return;
      kernels.step[algorithm_][static_cast<std::size_t>(t.stored)](task(run, now, measure, scratch));
    };
    cpu::parallel_for(static_cast<std::int64_t>(runs_.size()), now.args.threads, body);
  }

  void publish_axes(const StepArgs& args) const {
    const auto* workspace = reinterpret_cast<const float*>(args.workspace.data());
    for (const Tensor& t : tensors_) {
      for (std::size_t s = 0; t.axes && s < slot_count(); ++s) {
        if (!has_axis_scales(t.stored, slots_.moment[s])) continue;
        const std::int64_t count = cpu::axis_maxima_count({t.args.spec.shape.data(), t.args.spec.ndim});
        for (std::int64_t i = 0; i < count; ++i) {
          t.args.state[s].scales[i] = formula::canonical(scalar::F32(workspace[t.workspace_at[s] + i])).v;
        }
      }
    }
  }

  GroupConfig config_;
  std::size_t algorithm_;
  SlotList slots_;
  std::vector<Tensor> tensors_;
  std::vector<Run> runs_;
  std::vector<formula::Sums> sums_, totals_;  // of each run, of each tensor
  std::int64_t workspace_floats_ = 0;
};

}  // namespace

Result<std::unique_ptr<StepBackend>> make_cpu_step(const GroupConfig& config,
                                                   std::span<const TensorArgs> tensors) {
  return std::unique_ptr<StepBackend>(std::make_unique<CpuStep>(config, tensors));
}

}  // namespace octavo
