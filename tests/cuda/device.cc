// See device.h.
// SPDX-License-Identifier: MIT
#include "tests/cuda/device.h"

#include "optimizers/group.h"
#include "tests/reference/formats.h"
#include "tests/support/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

namespace test {
namespace {

constexpr std::byte kWatched{0xA5};
constexpr std::int64_t kAround = 256;
std::int64_t up(std::int64_t bytes) { return (bytes + kAround - 1) / kAround * kAround; }

std::int64_t phase_of(const Buffer& buffer, Placement placement, std::size_t tensor) {
  if (placement == Placement::bucket) return 0;
  const bool aligned = placement == Placement::aligned || (placement == Placement::mixed && tensor % 3 != 2);
  if (aligned || buffer.data() == nullptr) return 0;
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64);
}

std::int64_t phase_of_grad(const TensorBuffers& t, Placement placement, std::size_t tensor) {
  if (placement != Placement::bucket) return phase_of(t.grad, placement, tensor);
  return static_cast<std::int64_t>(tensor % 16) * octavo::dtype_bytes(t.spec.grad_dtype);
}

const char* name(Placement placement) {
  static constexpr const char* kNames[] = {"unaligned", "aligned", "mixed", "gradients in a bucket"};
  return kNames[static_cast<std::size_t>(placement)];
}

const char* name(Grads kind) {
  static constexpr const char* kNames[] = {"mixed", "dense", "tiny", "patchy",
                                           "zero",  "huge",  "wide", "special"};
  return kNames[static_cast<std::size_t>(kind)];
}

float dense_value(Random& random, int spread) {
  float value = 0.0f;
  while (std::fabs(value) < 0.02f) value = random.gaussian();
  return 0.05f * std::ldexp(value, -static_cast<int>(random.below(static_cast<std::uint64_t>(spread) + 1)));
}

constexpr std::int64_t kPool = 65521;

std::vector<float> pool_values(Grads kind) {
  Random random(static_cast<std::uint64_t>(kind) + 17);
  std::vector<float> values(usize(kPool));
  const std::vector<float> spread = spread_values(kPool, 5, 12);
  const std::vector<float> any = any_finite_values(kPool, 6);
  constexpr float kSpecial[] = {NAN, INFINITY, -INFINITY, 3e38f, -0.0f, 1e-44f, -1e-39f, 2e19f};
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (kind) {
      case Grads::mixed:
        values[i] = 0.01f * spread[i];
        break;
      case Grads::dense:
        values[i] = dense_value(random, 14);
        break;
      case Grads::tiny:
        values[i] = 1e-28f * dense_value(random, 14);
        break;
      case Grads::patchy:
        values[i] = random.chance(1500) ? 0.0f : dense_value(random, 14);
        break;
      case Grads::zero:
        values[i] = 0.0f;
        break;
      case Grads::huge:
        values[i] = 1e18f * dense_value(random, 4);
        break;
      case Grads::wide:
        values[i] = any[i];
        break;
      case Grads::special:
        values[i] = random.chance(997) ? kSpecial[random.below(8)] : 0.01f * spread[i];
        break;
    }
  }
  return values;
}

const std::vector<std::byte>& pool(Grads kind, octavo::DType dtype) {
  static std::map<std::pair<Grads, octavo::DType>, std::vector<std::byte>> pools;
  std::vector<std::byte>& bytes = pools[{kind, dtype}];
  if (bytes.empty()) {
    const std::vector<float> values = pool_values(kind);
    bytes.resize(usize(kPool * octavo::dtype_bytes(dtype)));
    for (std::size_t i = 0; i < values.size(); ++i)
      reference::store_nearest(dtype, bytes.data(), static_cast<std::int64_t>(i), values[i]);
  }
  return bytes;
}

// Copies the pool repeatedly, from a random start.
void copy_pool(Grads kind, octavo::DType dtype, Random& random, const Buffer& to) {
  const std::vector<std::byte>& from = pool(kind, dtype);
  std::size_t at = usize(octavo::dtype_bytes(dtype)) * random.below(static_cast<std::uint64_t>(kPool));
  const std::size_t size = usize(to.size());
  for (std::size_t done = 0; done < size; at = 0) {
    const std::size_t part = std::min(size - done, from.size() - at);
    std::memcpy(to.data() + done, from.data() + at, part);
    done += part;
  }
}

}  // namespace

void cuda_check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error) + " (" +
                           cudaGetErrorName(error) + ")");
}

void GpuTest::SetUp() {
  const octavo::GpuReport report = octavo::gpu_info();
  if (report.gpus.empty()) GTEST_SKIP() << "no GPU: " << report.note;
  if (!report.gpus[0].usable) GTEST_SKIP() << report.gpus[0].name << ": " << report.gpus[0].note;
  const cudaError_t error = cudaDeviceSynchronize();
  ASSERT_EQ(error, cudaSuccess) << "an earlier test left the device in error: " << cudaGetErrorString(error);
}

DeviceMemory::~DeviceMemory() {
  for (Region& region : regions_) (void)cudaFree(region.device);
}

std::size_t DeviceMemory::add(std::int64_t bytes, std::int64_t phase) {
  if (memory_ == Memory::apart || regions_.empty()) regions_.emplace_back();
  std::vector<std::byte>& host = regions_.back().host;
  const auto used = static_cast<std::int64_t>(host.size());
  std::int64_t offset = phase;
  std::int64_t total = std::max<std::int64_t>(phase + bytes, 1);
  if (memory_ == Memory::together) {
    offset = up(used + kAround) + phase;
    total = offset + bytes + kAround;
  }
  host.resize(usize(total), kWatched);
  slots_.push_back({regions_.size() - 1, offset, bytes});
  return slots_.size() - 1;
}

void DeviceMemory::allocate() {
  for (Region& region : regions_) {
    if (region.device == nullptr)
      OCTAVO_CUDA(cudaMalloc(reinterpret_cast<void**>(&region.device), region.host.size()));
  }
}

std::byte* DeviceMemory::device(std::size_t slot) const {
  return regions_[slots_[slot].region].device + slots_[slot].offset;
}
std::byte* DeviceMemory::host(std::size_t slot) {
  return regions_[slots_[slot].region].host.data() + slots_[slot].offset;
}

void DeviceMemory::upload(cudaStream_t stream, std::size_t first) {
  allocate();
  if (memory_ == Memory::together && !regions_.empty()) {
    Region& region = regions_[0];
    const std::size_t from = first == 0 ? 0 : first < slots_.size() ? usize(slots_[first].offset) : 0;
    if (first < slots_.size()) {
      OCTAVO_CUDA(cudaMemcpyAsync(region.device + from, region.host.data() + from, region.host.size() - from,
                                  cudaMemcpyHostToDevice, stream));
    }
  } else {
    for (std::size_t i = first; i < slots_.size(); ++i) {
      Region& region = regions_[slots_[i].region];
      OCTAVO_CUDA(cudaMemcpyAsync(region.device, region.host.data(), region.host.size(),
                                  cudaMemcpyHostToDevice, stream));
    }
  }
  OCTAVO_CUDA(cudaStreamSynchronize(stream));
}

void DeviceMemory::download(cudaStream_t stream) {
  for (Region& region : regions_) {
    OCTAVO_CUDA(cudaMemcpyAsync(region.host.data(), region.device, region.host.size(), cudaMemcpyDeviceToHost,
                                stream));
  }
  OCTAVO_CUDA(cudaStreamSynchronize(stream));
}

std::optional<std::size_t> DeviceMemory::damaged() const {
  const auto changed = [](const std::vector<std::byte>& host, std::int64_t begin, std::int64_t end) {
    return std::any_of(host.begin() + begin, host.begin() + end, [](std::byte b) { return b != kWatched; });
  };
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const std::vector<std::byte>& host = regions_[slot.region].host;
    if (memory_ == Memory::apart) begin = 0;
    if (changed(host, begin, slot.offset)) return i;
    begin = slot.offset + slot.size;
    const bool last = memory_ == Memory::apart || i + 1 == slots_.size();
    if (last && changed(host, begin, static_cast<std::int64_t>(host.size()))) return i;
  }
  return {};
}

DeviceWorkspace::DeviceWorkspace(std::int64_t bytes, Memory memory)
    : size_(bytes), around_(memory == Memory::together ? kAround : 0) {
  const std::size_t total = usize(std::max<std::int64_t>(size_ + 2 * around_, 16));
  OCTAVO_CUDA(cudaMalloc(reinterpret_cast<void**>(&base_), total));
  // A separate allocation is not initialised, so that initcheck detects a read before the first write.
  if (around_ > 0) OCTAVO_CUDA(cudaMemset(base_, static_cast<int>(kWatched), total));
  OCTAVO_CUDA(cudaDeviceSynchronize());
  data_ = base_ + around_;
}
DeviceWorkspace::~DeviceWorkspace() { (void)cudaFree(base_); }

bool DeviceWorkspace::surroundings_intact(cudaStream_t stream) const {
  if (around_ == 0) return true;
  std::array<std::byte, 2 * kAround> bytes;
  OCTAVO_CUDA(cudaMemcpyAsync(bytes.data(), base_, usize(kAround), cudaMemcpyDeviceToHost, stream));
  OCTAVO_CUDA(
      cudaMemcpyAsync(bytes.data() + kAround, data_ + size_, usize(kAround), cudaMemcpyDeviceToHost, stream));
  OCTAVO_CUDA(cudaStreamSynchronize(stream));
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kWatched; });
}

DeviceGrads::DeviceGrads(const TensorSet& set, Placement placement, cudaStream_t stream)
    : memory_(Memory::together) {
  for (const TensorBuffers& t : set.tensors()) {
    const std::size_t slot = memory_.add(t.grad.size(), phase_of_grad(t, placement, views_.size()));
    if (t.grad.size() > 0) std::memcpy(memory_.host(slot), t.grad.data(), usize(t.grad.size()));
    views_.push_back({nullptr, t.spec.grad_dtype, t.spec.numel});
  }
  memory_.upload(stream);
  for (std::size_t i = 0; i < views_.size(); ++i) views_[i].data = memory_.device(i);
}
std::vector<const void*> DeviceGrads::pointers() const {
  std::vector<const void*> result;
  for (const octavo::GradView& view : views_) result.push_back(view.data);
  return result;
}
std::vector<octavo::GradView> DeviceGrads::views() const { return views_; }

DeviceSet::DeviceSet(const TensorSet& set, Placement placement, cudaStream_t stream, Memory memory)
    : config_(set.config()), placement_(placement), stream_(stream), kind_(memory), memory_(memory) {
  config_.device = kGpu;
  static constexpr const char* kCodes[] = {"codes[0]", "codes[1]", "codes[2]"};
  static constexpr const char* kScales[] = {"scales[0]", "scales[1]", "scales[2]"};
  const auto& tensors = set.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorBuffers& t = tensors[i];
    const auto none = [](const Buffer& buffer) { return buffer.size() == 0; };
    if (!none(t.param)) {
      add(
          i, "param", octavo::dtype_bytes(t.spec.param_dtype),
          [](const TensorBuffers& b) -> const Buffer& { return b.param; }, t);
    }
    if (!none(t.residual)) {
      add(
          i, "residual", t.spec.store == octavo::WeightStore::residual16 ? 2 : 1,
          [](const TensorBuffers& b) -> const Buffer& { return b.residual; }, t);
    }
    const std::int64_t code = t.spec.format == octavo::StateFormat::fp32   ? 4
                              : t.spec.format == octavo::StateFormat::bf16 ? 2
                                                                           : 1;
    for (std::size_t s = 0; s < t.codes.size(); ++s) {
      if (!none(t.codes[s])) {
        add(
            i, kCodes[s], code, [s](const TensorBuffers& b) -> const Buffer& { return b.codes[s]; }, t);
      }
      if (!none(t.scales[s])) {
        add(
            i, kScales[s], 4, [s](const TensorBuffers& b) -> const Buffer& { return b.scales[s]; }, t);
      }
    }
  }
  first_grad_ = fields_.size();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].grad.size() == 0) continue;
    add(
        i, "grad", octavo::dtype_bytes(tensors[i].spec.grad_dtype),
        [](const TensorBuffers& b) -> const Buffer& { return b.grad; }, tensors[i]);
  }
  memory_.upload(stream);
  args_ = set.args();
  for (octavo::TensorArgs& t : args_) {
    t.param = t.residual = nullptr;
    t.grad = nullptr;
    t.state = {};
  }
  for (const Field& field : fields_) {
    octavo::TensorArgs& t = args_[field.tensor];
    std::byte* data = memory_.device(field.slot);
    const std::string_view what = field.name;
    if (what == "param") t.param = data;
    if (what == "residual") t.residual = data;
    if (what == "grad") t.grad = data;
    for (std::size_t s = 0; s < t.state.size(); ++s) {
      if (what == kCodes[s]) t.state[s].codes = data;
      if (what == kScales[s]) t.state[s].scales = reinterpret_cast<float*>(data);
    }
  }
}

void DeviceSet::add(std::size_t tensor, const char* what, std::int64_t element,
                    std::function<const Buffer&(const TensorBuffers&)> in, const TensorBuffers& t) {
  const Buffer& buffer = in(t);
  const bool grad = &buffer == &t.grad;
  const std::int64_t phase =
      grad ? phase_of_grad(t, placement_, tensor) : phase_of(buffer, placement_, tensor);
  const std::size_t slot = memory_.add(buffer.size(), phase);
  std::memcpy(memory_.host(slot), buffer.data(), usize(buffer.size()));
  fields_.push_back({tensor, slot, what, element, std::move(in)});
}

octavo::GroupConfig DeviceSet::config() const { return config_; }

std::vector<octavo::GradView> DeviceSet::grads() const {
  std::vector<octavo::GradView> views;
  for (const octavo::TensorArgs& t : args_) views.push_back({t.grad, t.spec.grad_dtype, t.spec.numel});
  return views;
}

octavo::Group& DeviceSet::group() {
  if (group_ == nullptr) {
    group_ = std::make_unique<octavo::Group>(octavo::Group::create(config_, args_).value());
    workspace_ = std::make_unique<DeviceWorkspace>(group_->workspace_bytes(), kind_);
  }
  return *group_;
}

void DeviceSet::upload_grads(const TensorSet& set) {
  if (first_grad_ == fields_.size()) return;
  for (std::size_t i = first_grad_; i < fields_.size(); ++i) {
    const Buffer& buffer = set.tensors()[fields_[i].tensor].grad;
    std::memcpy(memory_.host(fields_[i].slot), buffer.data(), usize(buffer.size()));
  }
  memory_.upload(stream_, fields_[first_grad_].slot);
}

octavo::Result<octavo::StepReport> DeviceSet::step(octavo::StepArgs args) {
  octavo::Group& group = this->group();
  args.stream = stream_;
  args.workspace = workspace_->span();
  return group.step(args);
}

std::string DeviceSet::difference(const TensorSet& expected) {
  constexpr int kLines = 4;
  memory_.download(stream_);
  std::string text;
  int lines = 0;
  if (const auto slot = memory_.damaged()) {
    const Field& field = fields_[*slot];
    text += "  bytes around " + std::string(field.name) + " of tensor " + std::to_string(field.tensor) +
            " (or the buffer before it) changed\n";
  }
  if (workspace_ != nullptr && !workspace_->surroundings_intact(stream_))
    text += "  bytes around the workspace changed\n";
  for (const Field& field : fields_) {
    const TensorBuffers& t = expected.tensors()[field.tensor];
    const Buffer& want = field.in(t);
    const std::byte* got = memory_.host(field.slot);
    if (std::memcmp(got, want.data(), usize(want.size())) == 0) continue;
    if (++lines > kLines) continue;
    text += "  tensor " + std::to_string(field.tensor) + " (" + text_of(t.spec) + ", " + name(placement_) +
            ") " + field.name + ", of " + std::to_string(want.size() / field.element) + ": " +
            first_difference(got, want.data(), usize(want.size() / field.element), usize(field.element)) +
            "\n";
  }
  if (lines > kLines) text += "  and " + std::to_string(lines - kLines) + " more buffers\n";
  return text;
}

void Tally::add(const std::string& combination, const std::string& difference) {
  constexpr int kShown = 8;
  ++count_;
  if (difference.empty()) return;
  if (++bad_ <= kShown) text_ += combination + ": " + difference + (difference.back() == '\n' ? "" : "\n");
}
Tally::~Tally() {
  EXPECT_GT(count_, 0) << "nothing was compared";
  if (bad_ > 0) {
    ADD_FAILURE() << bad_ << " of " << count_ << " combinations differ (element: got is the GPU's):\n"
                  << text_ << (bad_ > 8 ? "...\n" : "");
  }
}

void fill(TensorSet& set, Grads kind, std::uint64_t seed) {
  Random random(seed * 1000003 + 1);
  for (TensorBuffers& t : set.tensors()) copy_pool(kind, t.spec.grad_dtype, random, t.grad);
}

TensorSet pooled_set(const octavo::GroupConfig& config, std::span<const octavo::TensorSpec> specs,
                     std::uint64_t seed) {
  std::vector<octavo::TensorSpec> empty(specs.begin(), specs.end());
  for (octavo::TensorSpec& spec : empty) {
    spec.numel = spec.ndim = 0;
    spec.shape = {};
  }
  TensorSet set(config, empty, seed);
  Random random(seed);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    TensorBuffers& t = set.tensors()[i];
    t.spec = specs[i];
    t.layout = octavo::layout(config, t.spec).value();
    t.param = Buffer(t.spec.numel * octavo::dtype_bytes(t.spec.param_dtype), 4);
    t.grad = Buffer(t.spec.numel * octavo::dtype_bytes(t.spec.grad_dtype), 8);
    t.residual = Buffer(t.layout.residual_bytes, 2);
    for (std::size_t s = 0; s < usize(t.layout.slots); ++s) {
      t.codes[s] = Buffer(t.layout.slot[s].codes_bytes, 4);
      t.scales[s] = Buffer(4 * t.layout.slot[s].scales, 4);
    }
    copy_pool(Grads::dense, t.spec.param_dtype, random, t.param);
  }
  fill(set, Grads::mixed, seed);
  return set;
}

void add_special_params(TensorSet& set) {
  for (TensorBuffers& t : set.tensors()) {
    const auto put = [&](std::int64_t at, float value) {
      if (at < t.spec.numel) reference::store_nearest(t.spec.param_dtype, t.param.data(), at, value);
    };
    put(3, 0.0f);
    put(10, -0.0f);
    put(20, 1e-40f);
    if (t.spec.numel == 1024) {
      put(500, INFINITY);
      put(700, NAN);
    }
    if (t.spec.numel > 60000) {
      put(600, -INFINITY);
      put(t.spec.numel - 9, NAN);
    }
  }
}

Race::Race(const TensorSet& start, cudaStream_t stream, Memory memory, std::vector<Placement> placements)
    : cpu_(start), placements_(std::move(placements)) {
  for (const Placement placement : placements_)
    gpus_.push_back(std::make_unique<DeviceSet>(cpu_, placement, stream, memory));
}

std::string Race::step(octavo::StepArgs args, Grads kind, std::uint64_t seed) {
  fill(cpu_, kind, seed);
  // The GPUs' work is queued first, so that they run in parallel.
  for (const auto& gpu : gpus_) {
    gpu->upload_grads(cpu_);
    if (const auto report = gpu->step(args); !report.ok()) return "GPU: " + report.status().message();
  }
  args.threads = 0;
  if (const auto report = cpu_.step(args); !report.ok()) return "CPU: " + report.status().message();
  for (const auto& gpu : gpus_) {
    std::string difference = gpu->difference(cpu_);
    if (!difference.empty())
      return "step " + std::to_string(args.step) + ", gradients " + std::string(name(kind)) + "\n" +
             difference;
  }
  return "";
}

std::string Race::steps(octavo::StepArgs args, std::span<const Grads> kinds) {
  for (const Grads kind : kinds) {
    std::string difference = step(args, kind, static_cast<std::uint64_t>(args.step));
    if (!difference.empty()) return difference;
    ++args.step;
  }
  return "";
}

std::string text_of(const octavo::TensorSpec& spec) {
  return std::string(octavo::name(spec.format)) + ", block " + std::to_string(spec.block_size) + ", " +
         std::string(octavo::name(spec.param_dtype)) + " " + std::string(octavo::name(spec.store)) +
         ", gradient " + std::string(octavo::name(spec.grad_dtype)) + ", " + std::to_string(spec.numel) +
         " elements in " + std::to_string(spec.ndim) + " dims";
}

}  // namespace test
