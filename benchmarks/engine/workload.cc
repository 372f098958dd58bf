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

void check_not_skipped(bool skipped) {
  if (skipped)
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
      specs_(specs.begin(), specs.end()),
      report_(device.allocate(sizeof(octavo_device_report))),
      norm_(device.allocate(sizeof(octavo_device_norm))),
      device_counts_(device.allocate(8 * static_cast<std::int64_t>(specs.size()))),
      masks_(device.allocate(rows_.bytes())),
      engine_(or_failure([&] { return Engine(static_cast<std::uint32_t>(run.config.algorithm)); })),
      grads_(specs.size()),
      counts_(specs.size()) {
  run_.config.device = device.device();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    handles_.push_back(static_cast<std::uint32_t>(i));
    dtypes_.push_back(static_cast<std::uint8_t>(specs[i].grad_dtype));
    layouts_.push_back(take(layout(run_.config, specs[i])));
    tensors_.push_back(engine_tensor(specs[i], run_.config.device));
    tensors_[i].id = i;
  }
  // place(bytes(tensor), put(tensor, address)) allocates one arena for all tensors.
  const auto place = [&](auto bytes, auto put) {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < specs.size(); ++i) total += aligned(bytes(i));
    if (total == 0) return;
    std::byte* at = buffers_.emplace_back(device.allocate(total + kMove)).data();
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (bytes(i) > 0) put(i, at);
      at += aligned(bytes(i));
    }
  };
  place([&](std::size_t i) { return param_bytes(specs[i]); },
        [&](std::size_t i, std::byte* at) { tensors_[i].param = at; });
  const std::int64_t offset = run_.grad_offset * dtype_bytes(run_.grad_dtype);
  place([&](std::size_t i) { return grad_bytes(specs[i]) > 0 ? grad_bytes(specs[i]) + offset : 0; },
        [&](std::size_t i, std::byte* at) { grads_[i] = at + offset; });
  place([&](std::size_t i) { return layouts_[i].residual_bytes; },
        [&](std::size_t i, std::byte* at) { tensors_[i].residual = at; });
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kMaxSlots); ++slot) {
    place([&](std::size_t i) { return layouts_[i].slot[slot].codes_bytes; },
          [&](std::size_t i, std::byte* at) { tensors_[i].codes[slot] = at; });
    place([&](std::size_t i) { return 4 * layouts_[i].slot[slot].scales; },
          [&](std::size_t i, std::byte* at) { tensors_[i].scales[slot] = reinterpret_cast<float*>(at); });
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (tensors.shapes[i].role != TensorRole::adapter_out)  // memory is already zero
      device_.fill(tensors_[i].param, specs[i].param_dtype, stream_of(i, 0), kWeightShift, specs[i].numel);
    elsewhere_.push_back(static_cast<const std::byte*>(grads_[i]) + kMove);
  }
  fill_grads(1);
  set_options(0.0);
  place_counts(false);
}

void Workload::fill_grads(std::int64_t step) {
  touched_ = rows_.masks_at(step);
  for (std::size_t i = 0; i < touched_.size(); ++i) ever_touched_[i] |= touched_[i];
  device_.write(masks_.data(), touched_);
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    // This class owns the buffer; const applies only to the optimizer's view.
    device_.fill(const_cast<void*>(grads_[i]), specs_[i].grad_dtype,
                 stream_of(i, static_cast<std::uint64_t>(step)), kGradShift, specs_[i].numel,
                 rows_.mask(i, masks_.data()));
  }
}

void Workload::set_options(double clip_grad_norm) {
  if (clip_grad_norm == max_norm_) return;
  max_norm_ = clip_grad_norm;
  octavo_step_args options = usual_options(run_.config);
  options.seed = 1;
  options.clip_grad_norm = clip_grad_norm;
  or_failure([&] { engine_.set_group(0, run_.config.switches, options); });
}

// Places the step counts in host memory, or in the device's for steps that only the device knows the outcome
// of.
void Workload::place_counts(bool on_device) {
  if (!tensors_.empty() && tensors_[0].step != nullptr && (tensors_[0].step_on_device != 0) == on_device)
    return;
  std::ranges::fill(counts_, steps_);
  if (on_device) device_.write(device_counts_.data(), std::as_bytes(std::span(counts_)));
  auto* const counts = on_device ? reinterpret_cast<std::int64_t*>(device_counts_.data()) : counts_.data();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].step = counts + i;
    tensors_[i].step_on_device = on_device ? 1 : 0;
    tensors_[i].known_steps = steps_;
  }
  or_failure([&] { engine_.set(handles_, tensors_); });
}

void Workload::begin(bool with_norm) {
  or_failure([&] { engine_.begin(handles_, grads_, dtypes_, with_norm); });
  const auto kind = static_cast<std::uint32_t>(run_.config.device.kind);
  const std::int64_t bytes = engine_.workspace_bytes(kind, run_.config.device.index);
  if (bytes <= workspace_.size) return;
  device_.wait();
  workspace_ = device_.allocate(bytes);
}

// Returns the device for a call of the engine.
octavo_engine_device Workload::here(bool guard) const {
  auto out = make<octavo_engine_device>();
  out.device_kind = static_cast<std::uint32_t>(run_.config.device.kind);
  out.device_index = run_.config.device.index;
  out.stream = device_.stream();
  out.workspace = workspace_.data();
  out.workspace_bytes = workspace_.size;
  if (!guard) return out;
  out.norm = reinterpret_cast<octavo_device_norm*>(norm_.data());
  out.report = reinterpret_cast<octavo_device_report*>(report_.data());
  return out;
}

void Workload::run(bool guard) {
  place_counts(device_.on_gpu() && guard);
  if (guard) {
    take_norm();
  } else {
    begin(false);
  }
  const octavo_engine_device device = here(guard);
  auto args = make<octavo_engine_args>();
  args.skip_nonfinite = guard ? 1 : 0;
  args.threads = run_.threads;
  args.devices = &device;
  args.device_count = 1;
  check_not_skipped(or_failure([&] { return engine_.step(args); }).skipped != 0);
  ++steps_;
}

void Workload::step(bool guard) {
  set_options(0.0);
  run(guard);
}

void Workload::clip_and_step() {
  set_options(1.0);
  run(true);
}

void Workload::take_norm() {
  begin(true);
  const octavo_engine_device device = here(true);
  auto args = make<octavo_engine_args>();
  args.threads = run_.threads;
  args.devices = &device;
  args.device_count = 1;
  auto part = make<octavo_engine_norm_part>();
  part.device_kind = device.device_kind;
  part.device_index = device.device_index;
  part.out = device.norm;
  or_failure([&] { engine_.norm(args, Span(&part, 1)); });
}

void Workload::move_grads() {
  std::swap(grads_, elsewhere_);
  begin(false);
}

void Workload::check_taken() {
  const std::vector<std::byte> bytes = device_.read(report_.data(), report_.size);
  octavo_device_report report;
  std::memcpy(&report, bytes.data(), sizeof report);
  check_not_skipped(report.skipped != 0);
}

octavo_device_norm Workload::norm() {
  const std::vector<std::byte> bytes = device_.read(norm_.data(), norm_.size);
  octavo_device_norm out;
  std::memcpy(&out, bytes.data(), sizeof out);
  return out;
}

std::vector<Workload::Piece> Workload::read() const {
  const std::span<const Slot> moments = slots(run_.config.algorithm, run_.config.switches);
  std::vector<Piece> out;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::string tensor =
        "tensor " + std::to_string(i) + " (" + std::to_string(specs_[i].numel) + " elements), ";
    const auto add = [&](const std::string& what, const void* data, std::int64_t bytes) {
      out.push_back({tensor + what, device_.read(data, bytes)});
    };
    add("param", tensors_[i].param, param_bytes(specs_[i]));
    add("residual", tensors_[i].residual, layouts_[i].residual_bytes);
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(layouts_[i].slots); ++slot) {
      const std::string moment(moments[slot].name);
      add(moment + " codes", tensors_[i].codes[slot], layouts_[i].slot[slot].codes_bytes);
      add(moment + " scales", tensors_[i].scales[slot], 4 * layouts_[i].slot[slot].scales);
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
    : tensors_(device, without_states(run), tensors,
               tensor_specs(without_states(run), tensors.shapes, true)) {}

octavo_device_norm NormWorkload::result() {
  step();
  return tensors_.norm();
}

}  // namespace octavo::cli
