// Buffers, bytes and steps of one optimizer over one list of tensors; see workload.h. There is one arena per
// kind of buffer (params, grads, residuals, each moment's codes and scales), with the tensors one after
// another, as a framework's allocator would place them.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/workload.h"

#include "benchmarks/engine/algorithm.h"
#include "benchmarks/engine/data.h"
#include "cli/cli.h"

#include <octavo/describe.h>

#include <cstring>
#include <utility>

namespace octavo::cli {
namespace {

constexpr std::int64_t kAlignment = 512;  // bytes, of every tensor, as in torch's CUDA allocator
constexpr std::int64_t kMove = 256;       // bytes that gradients are moved by; see Workload::move_grads
constexpr std::int64_t kArenas = 3 + 2 * kMaxSlots;

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::int64_t param_bytes(const TensorSpec& spec) { return spec.numel * dtype_bytes(spec.param_dtype); }
std::int64_t grad_bytes(const TensorSpec& spec) { return spec.numel * dtype_bytes(spec.grad_dtype); }

void check_not_skipped(const StepReport& report) {
  if (report.skipped)
    throw Failure(kExitFailure, "the guard skipped a step on finite gradients: a bug, please report");
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
    spec.format = every_tensor ? run.state : format_for(run.state, spec.numel).value();
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
    out.grad_bytes += grad_bytes(spec);
    out.state_bytes += needs.state_bytes();
    const std::int64_t updated = param_bytes(spec) + needs.state_bytes() + needs.residual_bytes;
    const std::int64_t measures = passes(run.config.algorithm, run.config.switches) - 1;
    out.moved_bytes += (2 + measures) * updated + (1 + measures + (run.guard ? 1 : 0)) * grad_bytes(spec);
    out.memory_bytes += param_bytes(spec) + grad_bytes(spec) + needs.state_bytes() + needs.residual_bytes +
                        needs.workspace_bytes + kArenas * kAlignment;
  }
  return out;
}

Workload::Workload(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors,
                   std::span<const TensorSpec> specs)
    : device_(device),
      run_(run),
      rows_(tensors.shapes, tensors.zeros),
      touched_(static_cast<std::size_t>(rows_.bytes())),
      ever_touched_(touched_),
      masks_(device.allocate(rows_.bytes())) {
  run_.config.device = device.device();
  args_.resize(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    args_[i].spec = specs[i];
    args_[i].id = i;
    layouts_.push_back(take(layout(run_.config, specs[i])));
  }
  // place(bytes(tensor), put(tensor, address)) allocates one arena for all tensors.
  const auto place = [&](auto bytes, auto put) {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < args_.size(); ++i) total += aligned(bytes(i));
    if (total == 0) return;
    std::byte* at = buffers_.emplace_back(device.allocate(total + kMove)).data();
    for (std::size_t i = 0; i < args_.size(); ++i) {
      if (bytes(i) > 0) put(args_[i], at);
      at += aligned(bytes(i));
    }
  };
  place([&](std::size_t i) { return param_bytes(specs[i]); },
        [](TensorArgs& t, std::byte* at) { t.param = at; });
  const std::int64_t offset = run_.grad_offset * dtype_bytes(run_.grad_dtype);
  place([&](std::size_t i) { return grad_bytes(specs[i]) > 0 ? grad_bytes(specs[i]) + offset : 0; },
        [&](TensorArgs& t, std::byte* at) { t.grad = at + offset; });
  place([&](std::size_t i) { return layouts_[i].residual_bytes; },
        [](TensorArgs& t, std::byte* at) { t.residual = at; });
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kMaxSlots); ++slot) {
    place([&](std::size_t i) { return layouts_[i].slot[slot].codes_bytes; },
          [slot](TensorArgs& t, std::byte* at) { t.state[slot].codes = at; });
    place([&](std::size_t i) { return 4 * layouts_[i].slot[slot].scales; },
          [slot](TensorArgs& t, std::byte* at) { t.state[slot].scales = reinterpret_cast<float*>(at); });
  }
  for (std::size_t i = 0; i < args_.size(); ++i) {
    if (tensors.shapes[i].role != TensorRole::adapter_out)  // memory is already zero
      device_.fill(args_[i].param, args_[i].spec.param_dtype, stream_of(i, 0), kWeightShift,
                   args_[i].spec.numel);
    elsewhere_.push_back(static_cast<const std::byte*>(args_[i].grad) + kMove);
  }
  fill_grads(1);
  group_.push_back(take(Group::create(run_.config, args_)));
  workspace_ = device_.allocate(group_.front().workspace_bytes());
  report_ = device_.allocate(sizeof(StepReport));
}

void Workload::fill_grads(std::int64_t step) {
  touched_ = rows_.masks_at(step);
  for (std::size_t i = 0; i < touched_.size(); ++i) ever_touched_[i] |= touched_[i];
  device_.write(masks_.data(), touched_);
  for (std::size_t i = 0; i < args_.size(); ++i) {
    // This class owns the buffer; const applies only to the optimizer's view.
    device_.fill(const_cast<void*>(args_[i].grad), args_[i].spec.grad_dtype,
                 stream_of(i, static_cast<std::uint64_t>(step)), kGradShift, args_[i].spec.numel,
                 rows_.mask(i, masks_.data()));
  }
}

StepArgs Workload::next_step() {
  StepArgs args;
  args.hyper = usual_hyper(run_.config);
  args.step = ++steps_;
  args.seed = 1;
  args.threads = run_.threads;
  args.stream = device_.stream();
  args.workspace = {workspace_.data(), static_cast<std::size_t>(workspace_.size)};
  return args;
}

void Workload::step(bool guard) {
  StepArgs args = next_step();
  args.guard = guard;
  if (guard) args.scalars.report = reinterpret_cast<StepReport*>(report_.data());
  check_not_skipped(take(group_.front().step(args)));
}

void Workload::clip_and_step() {
  if (norm_group_.empty()) {
    norm_group_.push_back(take(NormGroup::create(device_.device(), grads())));
    norm_workspace_ = device_.allocate(norm_group_.front().workspace_bytes());
    norm_ = device_.allocate(sizeof(GradNorm));
  }
  auto* const norm = reinterpret_cast<GradNorm*>(norm_.data());
  check(norm_group_.front().run({norm_workspace_.data(), static_cast<std::size_t>(norm_workspace_.size)},
                                norm, device_.stream(), run_.threads));
  StepArgs args = next_step();
  args.guard = true;
  args.max_norm = 1.0;
  args.scalars.norm = norm;
  args.scalars.report = reinterpret_cast<StepReport*>(report_.data());
  check_not_skipped(take(group_.front().step(args)));
}

void Workload::move_grads() {
  check(group_.front().rebind_grads(elsewhere_));
  for (std::size_t i = 0; i < args_.size(); ++i) elsewhere_[i] = std::exchange(args_[i].grad, elsewhere_[i]);
}

void Workload::check_taken() {
  const std::vector<std::byte> bytes = device_.read(report_.data(), report_.size);
  StepReport report;
  std::memcpy(&report, bytes.data(), sizeof report);
  check_not_skipped(report);
}

std::vector<GradView> Workload::grads() const {
  std::vector<GradView> out;
  for (const TensorArgs& tensor : args_)
    out.push_back({tensor.grad, tensor.spec.grad_dtype, tensor.spec.numel});
  return out;
}

std::vector<Workload::Piece> Workload::read() const {
  const std::span<const Slot> moments = slots(run_.config.algorithm, run_.config.switches);
  std::vector<Piece> out;
  for (std::size_t i = 0; i < args_.size(); ++i) {
    const std::string tensor =
        "tensor " + std::to_string(i) + " (" + std::to_string(args_[i].spec.numel) + " elements), ";
    const auto add = [&](const std::string& what, const void* data, std::int64_t bytes) {
      out.push_back({tensor + what, device_.read(data, bytes)});
    };
    add("param", args_[i].param, param_bytes(args_[i].spec));
    add("residual", args_[i].residual, layouts_[i].residual_bytes);
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(layouts_[i].slots); ++slot) {
      const std::string moment(moments[slot].name);
      add(moment + " codes", args_[i].state[slot].codes, layouts_[i].slot[slot].codes_bytes);
      add(moment + " scales", args_[i].state[slot].scales, 4 * layouts_[i].slot[slot].scales);
    }
  }
  return out;
}

RunSpec without_states(RunSpec run) {
  run.config.switches = 0;
  run.config.momentum = false;
  for (const AlgorithmInfo& info : algorithms()) {
    run.config.algorithm = info.number;
    if (slots(info.number, 0).empty()) break;  // an algorithm without moments
  }
  run.state = StateFormat::fp32;
  run.store = WeightStore::nearest;
  run.block_size = 0;
  run.guard = false;
  return run;
}

NormWorkload::NormWorkload(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors)
    : device_(device),
      threads_(run.threads),
      tensors_(device, without_states(run), tensors, tensor_specs(without_states(run), tensors.shapes, true)),
      out_(device.allocate(sizeof(GradNorm))) {
  group_.push_back(take(NormGroup::create(device.device(), tensors_.grads())));
  workspace_ = device.allocate(group_.front().workspace_bytes());
}

void NormWorkload::step() {
  check(group_.front().run({workspace_.data(), static_cast<std::size_t>(workspace_.size)},
                           reinterpret_cast<GradNorm*>(out_.data()), device_.stream(), threads_));
}

GradNorm NormWorkload::result() {
  step();
  const std::vector<std::byte> bytes = device_.read(out_.data(), out_.size);
  GradNorm out;
  std::memcpy(&out, bytes.data(), sizeof out);
  return out;
}

}  // namespace octavo::cli
