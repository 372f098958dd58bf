// The multi-tensor step on the CPU: tensors are cut into runs of whole blocks, and threads take runs.
// SPDX-License-Identifier: MIT
#include "cpu/implementations.h"
#include "cpu/kernels.h"
#include "cpu/rank1.h"
#include "cpu/threads.h"
#include "formula/decide.h"
#include "optimizers/backend.h"
#include "optimizers/format_resolution.h"

#include <algorithm>
#include <atomic>
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
  // Axis scales only, for each slot: floats from the workspace's start to the new maxima, and from the start
  // of rank1_values_ to folded scales and, behind them, folded reciprocals.
  std::array<std::int64_t, kMaxSlots> workspace_at{}, folded_at{};
  cpu::Fold fold{};
  std::size_t first_part = 0, parts = 0;
  bool rank1 = false;
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

// Neighbouring runs of a tensor with axis scales, whose maxima of rows and columns one thread gathers in
// memory of its own: threads share nothing, and the parts are joined when all are there.
struct Rank1Part {
  std::size_t tensor, first_run, runs;
  std::int64_t first_row, rows;
  std::array<std::int64_t, kMaxSlots> at{};  // floats from the start of rank1_values_

  [[nodiscard]] std::int64_t floats(const cpu::Fold& fold) const { return rows + fold.columns; }
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
      t.first_run = runs_.size();
      for (std::int64_t at = 0; at < spec.numel; at += kRun) {
        runs_.push_back({i, at, std::min(kRun, spec.numel - at)});
      }
      t.runs = runs_.size() - t.first_run;
      add_rank1(i, t);
      tensors_.push_back(t);
    }
    rank1_values_.resize(static_cast<std::size_t>(rank1_floats_) + cpu::kPad);  // vectors read beyond the end
  }

  Status bind_grads(std::span<const void* const> grads) override {
    for (std::size_t i = 0; i < grads.size(); ++i) tensors_[i].args.grad = grads[i];
    return {};
  }

  Result<StepReport> step(const StepArgs& args) override {
    const auto kernels = cpu::kernels();
    if (!kernels.ok()) return kernels.status();

    const cpu::FloatMode mode;
    const formula::StepInputs inputs = formula::step_inputs(describe(config_.algorithm)->decay, args);
    const std::int64_t counted = formula::must_count(inputs)
                                     ? count_nonfinite(**kernels, formula::unscale_of(inputs), args.threads)
                                     : 0;
    const formula::Decision decision = formula::decide(inputs, counted);
    if (decision.report.skipped) {
      formula::publish(inputs, decision);
      return decision.report;
    }
    const auto consts = constants(inputs, decision);
    const Step now{args, decision.step, consts.bytes};
    for_rank1(now, [&](const Tensor& t, std::size_t s) {
      cpu::fold_scales(shape_of(t), t.fold, t.args.state[s].scales, rank1_values(t.folded_at[s]));
    });
    if (kRuleFacts[algorithm_].passes > 1) find_trust_ratios(**kernels, now);
    if (!rank1_parts_.empty()) find_maxima(**kernels, now);
    pass(**kernels, now);
    for_rank1(now, [&](const Tensor& t, std::size_t s) { publish_rank1(now, t, s); });
    formula::publish(inputs, decision);
    return decision.report;
  }

  [[nodiscard]] std::int64_t workspace_bytes() const override { return 4 * workspace_floats_; }

 private:
  [[nodiscard]] std::size_t slot_count() const { return static_cast<std::size_t>(slots_.count); }

  [[nodiscard]] ConstsOf<Algorithms> constants(const formula::StepInputs& inputs,
                                               const formula::Decision& decision) const {
    ConstsOf<Algorithms> out{};
    at_index(Algorithms{}, algorithm_, [&](auto algo) {
      using A = decltype(algo);
      new (out.bytes) typename A::Consts(formula::constants<A>(inputs, decision));
      return 0;
    });
    return out;
  }

  [[nodiscard]] cpu::StepTask task(const Run& run, const Step& now, cpu::Scratch& scratch) const {
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
    for (std::size_t s = 0; s < slot_count(); ++s) {
      task.codes[s] = t.args.state[s].codes;
      task.scales_in[s] = t.args.state[s].scales;
      task.scales_out[s] = t.args.state[s].scales;
      if (has_rank1_scales(t.stored, slots_.moment[s])) {
        task.scales_in[s] = rank1_values(t.folded_at[s]);
        task.scales_out[s] = rank1_values(t.folded_at[s] + t.fold.rows + t.fold.columns);
      }
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
    task.fold = t.fold;
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
  void find_trust_ratios(const cpu::Kernels& kernels, const Step& now) {
    sums_.resize(runs_.size());
    auto body = [&](std::int64_t i, cpu::Scratch& scratch) {
      const auto index = static_cast<std::size_t>(i);
      const Run& run = runs_[index];
      cpu::StepTask one = task(run, now, scratch);
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
      if constexpr (formula::kHasTrustRatio<A>) {
        const auto& consts = *static_cast<const typename A::Consts*>(now.consts);
        for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].ratio = A::ratio(consts, totals_[i]);
      }
      return 0;
    });
  }

  void pass(const cpu::Kernels& kernels, const Step& now) const {
    auto body = [&](std::int64_t i, cpu::Scratch& scratch) {
      const Run& run = runs_[static_cast<std::size_t>(i)];
      kernels.step[algorithm_][static_cast<std::size_t>(tensors_[run.tensor].stored)](
          task(run, now, scratch));
    };
    cpu::parallel_for(static_cast<std::int64_t>(runs_.size()), now.args.threads, body);
  }

  // Places for a tensor's axis values, and its parts: of so many rows that their columns' maxima are few.
  void add_rank1(std::size_t index, Tensor& t) {
    constexpr std::int64_t kRows = 64;
    for (std::size_t s = 0; s < slot_count() && t.runs > 0; ++s) {
      if (!has_rank1_scales(t.stored, slots_.moment[s])) continue;
      t.rank1 = true;
      t.fold = cpu::fold_of(shape_of(t));
      t.workspace_at[s] = workspace_floats_;
      workspace_floats_ += cpu::rank1_maxima_count(shape_of(t));
      t.folded_at[s] = rank1_floats_;
      rank1_floats_ += 2 * (t.fold.rows + t.fold.columns);
    }
    if (!t.rank1) return;
    rank1_tensors_.push_back(index);
    t.first_part = rank1_parts_.size();
    const auto together = static_cast<std::size_t>((kRows * t.fold.columns + kRun - 1) / kRun);
    for (std::size_t at = 0; at < t.runs; at += together) {
      Rank1Part part{index, t.first_run + at, std::min(together, t.runs - at), 0, 0};
      const Run& last = runs_[part.first_run + part.runs - 1];
      part.first_row = runs_[part.first_run].begin / t.fold.columns;
      part.rows = (last.begin + last.count - 1) / t.fold.columns + 1 - part.first_row;
      for (std::size_t s = 0; s < slot_count(); ++s) {
        if (!has_rank1_scales(t.stored, slots_.moment[s])) continue;
        part.at[s] = rank1_floats_;
        rank1_floats_ += part.floats(t.fold);
      }
      rank1_parts_.push_back(part);
    }
    t.parts = rank1_parts_.size() - t.first_part;
  }

  // f(tensor, slot) for all moments with axis scales, tensors in parallel.
  template <class Fn>
  void for_rank1(const Step& now, Fn&& f) const {
    auto body = [&](std::int64_t i, cpu::Scratch&) {
      const Tensor& t = tensors_[rank1_tensors_[static_cast<std::size_t>(i)]];
      for (std::size_t s = 0; s < slot_count(); ++s) {
        if (has_rank1_scales(t.stored, slots_.moment[s])) f(t, s);
      }
    };
    if (!rank1_tensors_.empty())
      cpu::parallel_for(static_cast<std::int64_t>(rank1_tensors_.size()), now.args.threads, body);
  }

  // The first pass with axis scales: the maxima of every part, then of tensors, and what moments are encoded
  // by.
  void find_maxima(const cpu::Kernels& kernels, const Step& now) const {
    auto body = [&](std::int64_t i, cpu::Scratch& scratch) {
      const Rank1Part& part = rank1_parts_[static_cast<std::size_t>(i)];
      const Tensor& t = tensors_[part.tensor];
      for (std::size_t s = 0; s < slot_count(); ++s) {
        if (has_rank1_scales(t.stored, slots_.moment[s]))
          std::fill_n(rank1_values(part.at[s]), part.floats(t.fold), 0.0F);
      }
      for (std::size_t run = part.first_run; run < part.first_run + part.runs; ++run) {
        cpu::StepTask one = task(runs_[run], now, scratch);
        one.maxima_only = true;
        one.first_row = part.first_row;
        one.part_rows = part.rows;
        for (std::size_t s = 0; s < slot_count(); ++s) {
          if (has_rank1_scales(t.stored, slots_.moment[s])) one.scales_out[s] = rank1_values(part.at[s]);
        }
        kernels.step[algorithm_][static_cast<std::size_t>(t.stored)](one);
      }
    };
    cpu::parallel_for(static_cast<std::int64_t>(rank1_parts_.size()), now.args.threads, body);
    for_rank1(now, [&](const Tensor& t, std::size_t s) { join_parts(now, t, s); });
  }
  void join_parts(const Step& now, const Tensor& t, std::size_t s) const {
    float* const folded = rank1_values(t.folded_at[s] + t.fold.rows + t.fold.columns);
    std::fill_n(folded, t.fold.rows + t.fold.columns, 0.0F);
    for (std::size_t i = t.first_part; i < t.first_part + t.parts; ++i) {
      const Rank1Part& part = rank1_parts_[i];
      const float* const from = rank1_values(part.at[s]);
      cpu::raise_maxima_to(from, part.rows, folded + part.first_row);
      cpu::raise_maxima_to(from + part.rows, t.fold.columns, folded + t.fold.rows);
    }
    float* const maxima = new_maxima(now, t, s);
    cpu::unfold_maxima(shape_of(t), t.fold, folded, maxima);
    cpu::fold_inverses(shape_of(t), t.fold, maxima, folded);
  }
  // In the workspace, until the step is taken.
  static float* new_maxima(const Step& now, const Tensor& t, std::size_t s) {
    return reinterpret_cast<float*>(now.args.workspace.data()) + t.workspace_at[s];
  }
  static void publish_rank1(const Step& now, const Tensor& t, std::size_t s) {
    const float* const maxima = new_maxima(now, t, s);
    const std::int64_t count = cpu::rank1_maxima_count(shape_of(t));
    for (std::int64_t i = 0; i < count; ++i)
      t.args.state[s].scales[i] = formula::canonical(scalar::F32(maxima[i])).v;
  }

  [[nodiscard]] static cpu::Shape shape_of(const Tensor& t) {
    return {t.args.spec.shape.data(), t.args.spec.ndim};
  }
  [[nodiscard]] float* rank1_values(std::int64_t at) const { return rank1_values_.data() + at; }

  GroupConfig config_;
  std::size_t algorithm_;
  SlotList slots_;
  std::vector<Tensor> tensors_;
  std::vector<Run> runs_;
  std::vector<formula::Sums> sums_, totals_;  // of each run, of each tensor
  std::vector<std::size_t> rank1_tensors_;
  std::vector<Rank1Part> rank1_parts_;
  mutable std::vector<float> rank1_values_;  // folded scales and reciprocals of tensors, maxima of parts
  std::int64_t workspace_floats_ = 0, rank1_floats_ = 0;
};

}  // namespace

Result<std::unique_ptr<StepBackend>> make_cpu_step(const GroupConfig& config,
                                                   std::span<const TensorArgs> tensors) {
  return std::unique_ptr<StepBackend>(std::make_unique<CpuStep>(config, tensors));
}

}  // namespace octavo
