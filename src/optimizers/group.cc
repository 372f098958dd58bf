// The multi-tensor step on the CPU: tensors are cut into runs of whole blocks, and threads take runs.
// SPDX-License-Identifier: MIT
#include "cpu/implementations.h"
#include "cpu/kernels.h"
#include "cpu/threads.h"
#include "optimizers/resolve.h"

#include <octavo/optimizer.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

namespace octavo {
namespace {

// Elements a thread takes at a time: long enough to hide the hand-over, short enough to balance. A multiple
// of any block.
constexpr std::int64_t kRun = 8 * kMaxBlockSize;

struct Run {
  std::size_t tensor;
  std::int64_t begin, count;
};

struct Tensor {
  TensorArgs args;
  StateFormat stored;
  std::int64_t block;
  std::array<std::int64_t, kMaxSlots> workspace_at{};  // floats from the workspace's start; 4bit-rank1 only
  bool rank1 = false;
};

template <class>
struct ConstsOf;
template <class... Algo>
struct ConstsOf<TypeList<Algo...>> {
  // Algorithms may share a type; a variant of unique types would need more machinery than a union of sizes.
  alignas(16) std::byte bytes[std::max({sizeof(typename Algo::Consts)...})];
};

ConstsOf<Algorithms> derive(const GroupConfig& config, std::size_t algorithm, const StepArgs& args) {
  ConstsOf<Algorithms> out{};
  const HyperParams& h = args.hyper;
  formula::Common common;
  common.factor = static_cast<float>(h.maximize ? -args.grad_factor : args.grad_factor);
  const bool by_name = config.algorithm == Algorithm::adamw || config.algorithm == Algorithm::lion;
  if (h.decay == Decay::by_name ? by_name : h.decay == Decay::decoupled) {
    common.keep = static_cast<float>(1.0 - static_cast<double>(static_cast<float>(h.lr)) * h.weight_decay);
  } else {
    common.coupled = h.weight_decay != 0.0;
    common.decay = static_cast<float>(h.weight_decay);
  }
  at_index(Algorithms{}, algorithm, [&](auto algo) {
    using A = decltype(algo);
    auto* consts = new (out.bytes) typename A::Consts{};
    static_cast<formula::Common&>(*consts) = common;
    A::derive(h, args.step, *consts);
    return 0;
  });
  return out;
}

}  // namespace

struct Group::Impl {
  GroupConfig config;
  std::size_t algorithm = 0;
  SlotList slots{};
  std::vector<Tensor> tensors;
  std::vector<Run> runs;
  std::int64_t workspace_floats = 0;

  Status bind(std::span<const TensorArgs> given) {
    if (Status bad = check_tensors(config, given); !bad.ok()) return bad;
    algorithm = algorithm_index(config);
    slots = slots_of(algorithm);
    tensors.clear();
    runs.clear();
    tensors.reserve(given.size());
    workspace_floats = 0;
    for (std::size_t i = 0; i < given.size(); ++i) {
      Tensor t{given[i], stored_format(given[i].spec.format, given[i].spec.ndim),
               block_of(given[i].spec.format, given[i].spec.block_size)};
      for (std::size_t s = 0; s < static_cast<std::size_t>(slots.count); ++s) {
        if (!has_rank1_scale(t.stored, slots.moment[s])) continue;
        t.rank1 = true;
        t.workspace_at[s] = workspace_floats;
        workspace_floats += cpu::axis_maxima_count({given[i].spec.shape.data(), given[i].spec.ndim});
      }
      for (std::int64_t at = 0; at < t.args.spec.numel; at += kRun) {
        runs.push_back({i, at, std::min(kRun, t.args.spec.numel - at)});
      }
      tensors.push_back(t);
    }
    return {};
  }

  cpu::StepTask task(const Run& run, const StepArgs& args, const void* consts, bool measure) const {
    const Tensor& t = tensors[run.tensor];
    const TensorSpec& spec = t.args.spec;
    cpu::StepTask task{};
    task.param = t.args.param;
    task.grad = t.args.grad;
    task.residual = t.args.residual;
    auto* workspace = reinterpret_cast<float*>(args.workspace.data());
    for (std::size_t s = 0; s < static_cast<std::size_t>(slots.count); ++s) {
      task.codes[s] = t.args.state[s].codes;
      task.scales_in[s] = t.args.state[s].scales;
      const bool own = has_rank1_scale(t.stored, slots.moment[s]);
      task.scales_out[s] = own ? workspace + t.workspace_at[s] : t.args.state[s].scales;
      task.keys[1 + s] = formula::round_key(args.seed, static_cast<std::uint64_t>(args.step), t.args.id,
                                            static_cast<std::uint32_t>(1 + s));
    }
    task.keys[0] = formula::round_key(args.seed, static_cast<std::uint64_t>(args.step), t.args.id, 0);
    task.param_dtype = spec.param_dtype;
    task.grad_dtype = spec.grad_dtype;
    task.store = spec.store;
    task.begin = run.begin;
    task.count = run.count;
    task.block = t.block;
    task.index = static_cast<std::uint64_t>(t.args.offset + run.begin);
    task.shape = {spec.shape.data(), spec.ndim};
    task.measure = measure;
    task.consts = consts;
    task.scratch = &cpu::thread_scratch();
    return task;
  }

  // The workspace is written between reads of the tensors' buffers.
  [[nodiscard]] Status check_workspace(const StepArgs& args) const {
    if (workspace_floats == 0) return {};
    const std::span<const std::byte> workspace =
        args.workspace.first(static_cast<std::size_t>(4 * workspace_floats));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto size = layout(config, tensors[i].args.spec);
      if (!size.ok()) return size.status();
      if (const char* field = overlapping(tensors[i].args, *size, workspace)) {
        return Status::invalid(tag(config) + " workspace: overlaps tensors[" + std::to_string(i) + "]." +
                               field + "; it must not share memory with a buffer of the step");
      }
    }
    return {};
  }

  // Elements whose scaled gradient, or its square, is not finite.
  std::int64_t count_nonfinite(const cpu::Kernels& kernels, const StepArgs& args) const {
    std::atomic<std::int64_t> total{0};
    auto body = [&](std::int64_t i) {
      const Run& run = runs[static_cast<std::size_t>(i)];
      const TensorArgs& t = tensors[run.tensor].args;
      const cpu::NormPart part = kernels.norm(t.grad, t.spec.grad_dtype, run.begin, run.count,
                                              static_cast<float>(args.grad_factor), &cpu::thread_scratch());
      if (part.nonfinite != 0) total.fetch_add(part.nonfinite, std::memory_order_relaxed);
    };
    cpu::parallel_for(static_cast<std::int64_t>(runs.size()), args.threads, body);
    return total;
  }

  void pass(const cpu::Kernels& kernels, const StepArgs& args, const void* consts, bool measure) const {
    auto body = [&](std::int64_t i) {
      const Run& run = runs[static_cast<std::size_t>(i)];
      const Tensor& t = tensors[run.tensor];
      if (measure && !t.rank1) return;
      kernels.step[algorithm][static_cast<std::size_t>(t.stored)](task(run, args, consts, measure));
    };
    cpu::parallel_for(static_cast<std::int64_t>(runs.size()), args.threads, body);
  }

  void publish_rank1(const StepArgs& args) const {
    const auto* workspace = reinterpret_cast<const float*>(args.workspace.data());
    for (const Tensor& t : tensors) {
      for (std::size_t s = 0; t.rank1 && s < static_cast<std::size_t>(slots.count); ++s) {
        if (!has_rank1_scale(t.stored, slots.moment[s])) continue;
        const std::int64_t count = cpu::axis_maxima_count({t.args.spec.shape.data(), t.args.spec.ndim});
        for (std::int64_t i = 0; i < count; ++i) {
          t.args.state[s].scales[i] = formula::canonical(scalar::F32(workspace[t.workspace_at[s] + i])).v;
        }
      }
    }
  }
};

Group::Group(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::~Group() = default;

Result<Group> Group::create(const GroupConfig& config, std::span<const TensorArgs> tensors) {
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  if (Status bad = impl->bind(tensors); !bad.ok()) return bad;
  return Group(std::move(impl));
}

Status Group::rebind(std::span<const TensorArgs> tensors) {
  auto fresh = std::make_unique<Impl>();
  fresh->config = impl_->config;
  Status bad = fresh->bind(tensors);
  if (bad.ok()) impl_ = std::move(fresh);
  return bad;
}

std::int64_t Group::workspace_bytes() const { return 4 * impl_->workspace_floats; }
std::size_t Group::size() const { return impl_->tensors.size(); }

Result<StepReport> Group::step(const StepArgs& args) {
  const Impl& group = *impl_;
  if (Status bad = check_step(group.config, args, workspace_bytes()); !bad.ok()) return bad;
  if (Status bad = group.check_workspace(args); !bad.ok()) return bad;
  const auto kernels = cpu::kernels();
  if (!kernels.ok()) return kernels.status();

  const cpu::FloatMode mode;
  StepReport report;
  if (args.guard) {
    report.nonfinite = group.count_nonfinite(**kernels, args);
    report.skipped = report.nonfinite > 0;
    if (report.skipped) return report;
  }
  const auto consts = derive(group.config, group.algorithm, args);
  if (workspace_bytes() > 0) {
    std::memset(args.workspace.data(), 0, static_cast<std::size_t>(workspace_bytes()));
    group.pass(**kernels, args, consts.bytes, true);
  }
  group.pass(**kernels, args, consts.bytes, false);
  if (workspace_bytes() > 0) group.publish_rank1(args);
  return report;
}

Result<StepReport> step(const GroupConfig& config, std::span<const TensorArgs> tensors,
                        const StepArgs& args) {
  auto group = Group::create(config, tensors);
  if (!group.ok()) return group.status();
  return group->step(args);
}

}  // namespace octavo
