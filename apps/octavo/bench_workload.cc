// Buffers, bytes, steps and checksums of one optimizer over one list of tensors; see bench_workload.h.
// One arena per kind of buffer (params, grads, residuals, each moment's codes and scales), tensors one after
// another on cache lines: what a framework's allocator gives, and first touched in the slices that the
// threads work on.
// SPDX-License-Identifier: MIT
#include "bench_workload.h"

#include "bench_data.h"
#include "cli.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace octavo::cli {
namespace {

constexpr std::int64_t kLine = 64;
constexpr int kChecksumSteps = 3;

std::int64_t aligned(std::int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::int64_t param_bytes(const TensorSpec& spec) { return spec.numel * dtype_bytes(spec.param_dtype); }
std::int64_t grad_bytes(const TensorSpec& spec) { return spec.numel * dtype_bytes(spec.grad_dtype); }

StepArgs step_args(const RunSpec& run, std::int64_t step, const PageBuffer& workspace) {
  StepArgs args;
  args.hyper.lr = run.config.algorithm == Algorithm::lion ? 1e-4 : 1e-3;
  args.hyper.weight_decay = 0.01;
  args.hyper.momentum = 0.9;
  args.step = step;
  args.guard = run.guard;
  args.seed = 1;
  args.threads = run.threads;
  args.workspace = {workspace.data(), static_cast<std::size_t>(workspace.size())};
  return args;
}

}  // namespace

std::vector<TensorSpec> tensor_specs(const RunSpec& run, std::span<const TensorShape> shapes,
                                     bool every_tensor) {
  std::vector<TensorSpec> specs;
  for (const TensorShape& shape : shapes) {
    TensorSpec spec;
    spec.numel = shape.numel();
    spec.shape = shape.dims;
    spec.ndim = shape.ndim;
    spec.param_dtype = run.param_dtype;
    spec.grad_dtype = run.grad_dtype;
    spec.store = run.store;
    spec.format = every_tensor ? run.state : effective_format(run.state, spec.numel);
    spec.block_size = default_block_size(spec.format) > 0 ? run.block_size : 0;
    specs.push_back(spec);
  }
  return specs;
}

Footprint footprint(const RunSpec& run, std::span<const TensorSpec> specs) {
  Footprint out;
  for (const TensorSpec& spec : specs) {
    const TensorLayout needs = take(layout(run.config, spec));
    out.tensors += 1;
    out.numel += spec.numel;
    out.state_bytes += needs.state_bytes();
    out.moved_bytes += 2 * (param_bytes(spec) + needs.state_bytes() + needs.residual_bytes) +
                       (run.guard ? 2 : 1) * grad_bytes(spec);
    out.memory_bytes += param_bytes(spec) + grad_bytes(spec) + needs.state_bytes() + needs.residual_bytes +
                        needs.workspace_bytes;
  }
  return out;
}

Workload::Workload(const RunSpec& run, std::span<const TensorSpec> specs) : run_(run) {
  args_.resize(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    args_[i].spec = specs[i];
    args_[i].id = i;
    layouts_.push_back(take(layout(run.config, specs[i])));
  }
  // place(bytes(tensor), put(tensor, address)): an arena with room for every tensor.
  const auto place = [&](auto bytes, auto put) {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < args_.size(); ++i) total += aligned(bytes(i));
    touch(buffers_.emplace_back(total), run_.threads);
    std::byte* at = buffers_.back().data();
    for (std::size_t i = 0; i < args_.size(); ++i) {
      if (bytes(i) > 0) put(args_[i], at);
      at += aligned(bytes(i));
    }
  };
  place([&](std::size_t i) { return param_bytes(specs[i]); },
        [](TensorArgs& t, std::byte* at) { t.param = at; });
  place([&](std::size_t i) { return grad_bytes(specs[i]); },
        [](TensorArgs& t, std::byte* at) { t.grad = at; });
  place([&](std::size_t i) { return layouts_[i].residual_bytes; },
        [](TensorArgs& t, std::byte* at) { t.residual = at; });
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kMaxSlots); ++slot) {
    place([&](std::size_t i) { return layouts_[i].slot[slot].codes_bytes; },
          [slot](TensorArgs& t, std::byte* at) { t.state[slot].codes = at; });
    place([&](std::size_t i) { return 4 * layouts_[i].slot[slot].scales; },
          [slot](TensorArgs& t, std::byte* at) { t.state[slot].scales = reinterpret_cast<float*>(at); });
  }
  for_elements([&](std::size_t i, std::int64_t begin, std::int64_t end) {
    fill(args_[i].param, args_[i].spec.param_dtype, stream_of(i, 0), kWeightShift, begin, end);
  });
  fill_grads(1);
  group_.push_back(take(Group::create(run_.config, args_)));
  workspace_ = PageBuffer(group_.front().workspace_bytes());
  touch(workspace_, run_.threads);
}

void Workload::for_elements(
    const std::function<void(std::size_t tensor, std::int64_t begin, std::int64_t end)>& work) const {
  std::int64_t total = 0;
  for (const TensorArgs& tensor : args_) total += tensor.spec.numel;
  for_slices(run_.threads, total, 4096, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t first = 0;  // of the tensor at hand, in the list as a whole
    for (std::size_t i = 0; i < args_.size() && first < end; first += args_[i++].spec.numel) {
      const std::int64_t from = std::max<std::int64_t>(begin - first, 0);
      const std::int64_t to = std::min(end - first, args_[i].spec.numel);
      if (from < to) work(i, from, to);
    }
  });
}

void Workload::fill_grads(std::int64_t step) {
  for_elements([&](std::size_t i, std::int64_t begin, std::int64_t end) {
    // The buffer is ours; only the optimizer sees it as const.
    fill(const_cast<void*>(args_[i].grad), args_[i].spec.grad_dtype,
         stream_of(i, static_cast<std::uint64_t>(step)), kGradShift, begin, end);
  });
}

void Workload::step(std::int64_t step) {
  const StepReport report = take(group_.front().step(step_args(run_, step, workspace_)));
  if (report.skipped)
    throw Failure(kExitFailure, "the guard skipped a step on finite gradients: a bug, please report");
}

std::uint64_t Workload::hash() const {
  std::uint64_t hash = kHashStart;
  const auto add = [&](const void* data, std::int64_t bytes) {
    hash = fnv1a(hash, {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)});
  };
  for (std::size_t i = 0; i < args_.size(); ++i) {
    add(args_[i].param, param_bytes(args_[i].spec));
    add(args_[i].residual, layouts_[i].residual_bytes);
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(layouts_[i].slots); ++slot) {
      add(args_[i].state[slot].codes, layouts_[i].slot[slot].codes_bytes);
      add(args_[i].state[slot].scales, 4 * layouts_[i].slot[slot].scales);
    }
  }
  return hash;
}

std::string checksum(const RunSpec& run) {
  std::vector<TensorShape> shapes;
  for (const std::int64_t numel : {1, 31, 255, 256, 257, 4095, 4097, 100003})
    shapes.push_back(TensorShape("flat", {numel}));
  shapes.push_back(TensorShape("2d", {64, 96}));
  shapes.push_back(TensorShape("3d", {1024, 1, 9}));
  shapes.push_back(TensorShape("4d", {16, 3, 5, 7}));
  Workload workload(run, tensor_specs(run, shapes, true));
  for (int step = 1; step <= kChecksumSteps; ++step) {
    workload.fill_grads(step);
    workload.step(step);
  }
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(workload.hash()));
  return text.data();
}

}  // namespace octavo::cli
