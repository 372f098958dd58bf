// The model of `octavo bench offload`; see offload_model.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/offload_model.h"

#include "benchmarks/engine/algorithm.h"
#include "benchmarks/engine/data.h"
#include "benchmarks/engine/options.h"
#include "apps/octavo/common/cli.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace octavo::cli {
namespace {

constexpr std::int64_t kAlign = 512;  // the alignment of frameworks' allocators
// The bytes that one copy of a forward or backward pass moves.
constexpr std::int64_t kPassOnCpu = 1 << 20, kPassOnGpu = 1 << 26;
constexpr double kMaxNorm = 1.0;
constexpr std::uint64_t kFnvStart = 0xcbf29ce484222325ULL;

constexpr std::array kResidences = {std::pair{Residence::device, "device"},
                                    std::pair{Residence::host, "host"},
                                    std::pair{Residence::stream, "stream"}};

// The optimizer that benchmarks run by default.
Algorithm usual_algorithm() { return take(parse_algorithm(kDefaultOptimizer)); }

std::int64_t rounded_up(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
std::int64_t pass_bytes(const BenchDevice& device) { return device.on_gpu() ? kPassOnGpu : kPassOnCpu; }

void copy_once(BenchDevice& device, const Buffer& activations) {
  const std::int64_t half = activations.size / 2;
  device.copy(CopyWay::streaming, activations.data() + half, activations.data(), half);
}

}  // namespace

std::string residence_name(Residence residence) {
  return std::ranges::find(kResidences, residence, [](const auto& each) { return each.first; })->second;
}

Residence parse_residence(std::string_view text) {
  for (const auto& [residence, known] : kResidences)
    if (text == known) return residence;
  throw Failure(kExitUsage, "--residence: got '" + std::string(text) + "', expected device, host or stream");
}

int copies_for(BenchDevice& device, double ms) {
  const Buffer activations = device.allocate(2 * pass_bytes(device));
  std::vector<double> times = device.time_ms(11, [&] { copy_once(device, activations); });
  std::ranges::nth_element(times, times.begin() + 5);
  return std::max(1, static_cast<int>(std::lround(ms / std::max(times[5], 1e-3))));
}

OffloadModel::OffloadModel(BenchDevice& device, const OffloadSpec& spec)
    : device_(device),
      spec_(spec),
      engine_(take(Engine::create(usual_algorithm()))),
      handles_(static_cast<std::size_t>(spec.layers)),
      tensors_(handles_.size()),
      counts_(handles_.size()) {
  std::iota(handles_.begin(), handles_.end(), 0U);
  const std::int64_t each = rounded_up(spec.numel * dtype_bytes(spec.dtype));
  params_ = device.allocate(each * spec.layers);
  grads_ = device.allocate(each * spec.layers);
  norm_ = device.allocate(sizeof(GradNorm));
  activations_ = device.allocate(2 * pass_bytes(device));
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    EngineTensor& tensor = tensors_[i];
    tensor.tensor.spec.numel = spec.numel;
    tensor.tensor.spec.param_dtype = tensor.tensor.spec.grad_dtype = spec.dtype;
    tensor.tensor.spec.format = take(format_for(spec.state, spec.numel));
    tensor.tensor.id = i;
    tensor.tensor.param = params_.data() + each * static_cast<std::int64_t>(i);
    tensor.param_device = tensor.state_device = device.device();
    tensor.residence = spec.residence;
    tensor.step = &counts_[i];
    grads_at_.push_back(grads_.data() + each * static_cast<std::int64_t>(i));
    device.fill(tensor.tensor.param, spec.dtype, stream_of(i, 0), kWeightShift, spec.numel);
  }
  place_states();
  const EngineGroup group{.hyper = usual_hyper({.algorithm = usual_algorithm()}),
                          .max_norm = spec.clip ? kMaxNorm : 0.0};
  check(engine_.set_group(0, group));
  check(engine_.set(handles_, tensors_));
  if (spec.residence != Residence::device) check(engine_.set_order(handles_));
}

OffloadModel::~OffloadModel() {
  (void)engine_.synchronize();  // the buffers are freed after this
}

// Places all states in one slab, in the order of the tensors, so that neighbors are copied together.
void OffloadModel::place_states() {
  const GroupConfig config{.algorithm = usual_algorithm(), .device = device_.device()};
  const TensorLayout needs = take(layout(config, tensors_.front().tensor.spec));
  std::int64_t each = 0;
  for (const SlotLayout& slot : needs.slot)
    each += rounded_up(slot.codes_bytes) + rounded_up(4 * slot.scales);
  std::byte* at = nullptr;
  if (spec_.residence == Residence::device) {
    device_states_ = device_.allocate(each * spec_.layers);
    at = device_states_.data();
  } else {
    host_states_ = take(HostMemory::allocate(each * spec_.layers, device_.on_gpu()));
    at = host_states_.data();
  }
  for (EngineTensor& tensor : tensors_) {
    if (spec_.residence != Residence::device) tensor.state_device = {};
    for (std::size_t i = 0; i < static_cast<std::size_t>(needs.slots); ++i) {
      tensor.tensor.state[i].codes = at;
      at += rounded_up(needs.slot[i].codes_bytes);
      if (needs.slot[i].scales == 0) continue;
      tensor.tensor.state[i].scales = reinterpret_cast<float*>(at);
      at += rounded_up(4 * needs.slot[i].scales);
    }
  }
}

void OffloadModel::work(int copies, const char* pass, std::size_t layer) {
  if (traced_) {
    labels_.push_back(pass + std::to_string(layer));
    device_.mark();
  }
  for (int i = 0; i < copies; ++i) copy_once(device_, activations_);
  if (traced_) device_.mark();
}

void OffloadModel::forward(bool wait) {
  for (const std::uint32_t& layer : handles_) {
    if (wait) check(engine_.wait({&layer, 1}, EngineWait::weights, device_.device(), device_.stream()));
    work(spec_.copies, "forward ", layer);
  }
}

void OffloadModel::backward(bool take) {
  ++passes_;
  for (std::size_t i = handles_.size(); i-- > 0;) {
    work(2 * spec_.copies, "backward ", i);
    // forward() waited for this layer's weight, so the step has already read its last gradient.
    device_.fill(grads_at_[i], spec_.dtype, stream_of(i, passes_), kGradShift, spec_.numel);
    if (take) {
      const void* const grad = grads_at_[i];
      check(
          engine_.take({&handles_[i], 1}, {&grad, 1}, {&spec_.dtype, 1}, device_.device(), device_.stream()));
    }
  }
}

std::span<std::byte> OffloadModel::room(Buffer& buffer, std::int64_t bytes) {
  if (buffer.size < bytes) {
    check(engine_.synchronize());
    device_.wait();
    buffer = device_.allocate(bytes);
  }
  return {buffer.data(), static_cast<std::size_t>(buffer.size)};
}

void OffloadModel::step() {
  std::vector<const void*> grads(grads_at_.begin(), grads_at_.end());
  if (takes()) std::ranges::fill(grads, nullptr);
  const std::vector<DType> dtypes(grads.size(), spec_.dtype);
  (void)take(engine_.begin(handles_, grads, dtypes, spec_.clip));
  const Device device = device_.device();
  EngineDevice here{.device = device, .stream = device_.stream()};
  here.workspace = room(workspace_, engine_.workspace_bytes(device));
  here.staging = room(staging_, engine_.staging_bytes(device));
  here.norm = reinterpret_cast<GradNorm*>(norm_.data());
  const EngineArgs args{
      .threads = spec_.threads, .devices = {&here, 1}, .defer = spec_.residence != Residence::device};
  const EngineNormPart part{.device = device, .part = 0, .out = here.norm};
  if (spec_.clip) check(engine_.norm(args, {&part, 1}));
  (void)take(engine_.step(args));
}

void OffloadModel::iterate() {
  forward(spec_.residence != Residence::device);
  backward(takes());
  step();
}

void OffloadModel::pass() {
  forward(false);
  backward(false);
}

void OffloadModel::finish() {
  check(engine_.wait({}, EngineWait::weights, device_.device(), device_.stream()));
  check(engine_.synchronize());
  device_.wait();
}

void OffloadModel::trace(int iterations) {
  traced_ = true;
  for (int i = 0; i < iterations; ++i) iterate();
  traced_ = false;
  finish();
  const std::vector<double> at = device_.marks_us();
  for (std::size_t i = 0; i < labels_.size(); ++i)
    note_offload("model", labels_[i], at[2 * i], at[2 * i + 1]);
  labels_.clear();
}

std::uint64_t OffloadModel::checksum() const {
  std::uint64_t hash = kFnvStart;
  for (const EngineTensor& tensor : tensors_)
    hash = fnv1a(hash, device_.read(tensor.tensor.param, spec_.numel * dtype_bytes(spec_.dtype)));
  return hash;
}

std::string OffloadModel::why_not_pinned() const {
  return device_.on_gpu() && host_states_.bytes() > 0 && !host_states_.pinned() ? host_states_.why_not() : "";
}

}  // namespace octavo::cli
