// See buffers.h.
// SPDX-License-Identifier: MIT
#include "tests/support/buffers.h"

#include "tests/reference/formats.h"
#include "tests/support/random.h"

#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

namespace test {
namespace {

constexpr std::byte kWatched{0xA5};
constexpr std::int64_t kFront = 64;
// Under AddressSanitizer the allocation ends with the buffer, so that a read beyond it is detected as well.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kBack = 0;
#else
constexpr std::int64_t kBack = 64;
#endif

std::string describe(const char* what, std::size_t tensor, const Buffer& a, const Buffer& b) {
  std::int64_t first = -1;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    if (a.data()[i] == b.data()[i]) continue;
    if (first < 0) first = i;
    ++count;
  }
  char text[160];
  std::snprintf(text, sizeof text, "tensor %zu %s: %lld of %lld bytes differ, first at %lld: %02x and %02x\n",
                tensor, what, static_cast<long long>(count), static_cast<long long>(a.size()),
                static_cast<long long>(first), std::to_integer<unsigned>(a.data()[first]),
                std::to_integer<unsigned>(b.data()[first]));
  return text;
}

// Returns every buffer that a step may write, in a fixed order.
std::array<std::pair<const char*, const Buffer*>, 8> written(const TensorBuffers& t) {
  return {{{"param", &t.param},
           {"residual", &t.residual},
           {"codes[0]", &t.codes[0]},
           {"codes[1]", &t.codes[1]},
           {"codes[2]", &t.codes[2]},
           {"scales[0]", &t.scales[0]},
           {"scales[1]", &t.scales[1]},
           {"scales[2]", &t.scales[2]}}};
}

std::int64_t code_alignment(octavo::StateFormat format) {
  if (format == octavo::StateFormat::fp32) return 4;
  return format == octavo::StateFormat::bf16 ? 2 : 1;
}

float special_value(Random& random) {
  switch (random.below(8)) {
    case 0:
      return NAN;
    case 1:
      return INFINITY;
    case 2:
      return -INFINITY;
    case 3:
      return 3e38f;
    case 4:
      return -0.0f;
    case 5:
      return 1e-44f;
    case 6:
      return -1e-39f;
    default:
      return 2e19f;  // its square overflows
  }
}

}  // namespace

Buffer::Buffer(std::int64_t bytes, std::int64_t phase) : size_(bytes), phase_(phase) {
  allocate();
  std::memset(data_, 0, static_cast<std::size_t>(size_));
}

void Buffer::allocate() {
  const auto total = static_cast<std::size_t>(kFront + phase_ + size_ + kBack);
  base_ = static_cast<std::byte*>(::operator new (total, std::align_val_t{64}));
  std::memset(base_, static_cast<int>(kWatched), total);
  data_ = base_ + kFront + phase_;
}

Buffer::Buffer(const Buffer& other) : size_(other.size_), phase_(other.phase_) {
  if (other.base_ == nullptr) return;
  allocate();
  std::memcpy(data_, other.data_, static_cast<std::size_t>(size_));
}

Buffer& Buffer::operator=(const Buffer& other) {
  if (this != &other) *this = Buffer(other);
  return *this;
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(phase_, other.phase_);
  return *this;
}

Buffer::~Buffer() {
  if (base_ != nullptr) ::operator delete (base_, std::align_val_t{64});
}

bool Buffer::surroundings_intact() const {
  if (base_ == nullptr) return true;
  for (std::int64_t i = 0; i < kFront + phase_; ++i) {
    if (base_[i] != kWatched) return false;
  }
  for (std::int64_t i = 0; i < kBack; ++i) {
    if (data_[size_ + i] != kWatched) return false;
  }
  return true;
}

octavo::TensorArgs TensorBuffers::args() const {
  octavo::TensorArgs result;
  result.spec = spec;
  result.param = param.data();
  result.grad = grad.data();
  result.residual = residual.size() > 0 ? residual.data() : nullptr;
  for (std::size_t slot = 0; slot < codes.size(); ++slot) {
    result.state[slot].codes = codes[slot].data();
    result.state[slot].scales = scales[slot].size() > 0 ? scales[slot].as<float>() : nullptr;
  }
  result.id = id;
  result.offset = offset;
  return result;
}

TensorSet::TensorSet(const octavo::GroupConfig& config, std::span<const octavo::TensorSpec> specs,
                     std::uint64_t seed)
    : config_(config) {
  std::int64_t phase = 0;
  for (const octavo::TensorSpec& spec : specs) {
    TensorBuffers t;
    t.spec = spec;
    t.layout = octavo::layout(config, spec).value();
    t.id = seed + tensors_.size();
    const std::int64_t element = octavo::dtype_bytes(spec.param_dtype);
    const std::int64_t grad_element = octavo::dtype_bytes(spec.grad_dtype);
    t.param = Buffer(spec.numel * element, phase * element);
    t.grad = Buffer(spec.numel * grad_element, (phase + 1) * grad_element);
    t.residual = Buffer(t.layout.residual_bytes, 2 * phase);
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(t.layout.slots); ++slot) {
      t.codes[slot] = Buffer(t.layout.slot[slot].codes_bytes, (phase + 2) * code_alignment(spec.format));
      t.scales[slot] = Buffer(4 * t.layout.slot[slot].scales, 4 * phase);
    }
    tensors_.push_back(std::move(t));
    phase = (phase + 1) % 5;
  }
  fill_params(seed + 1000003);
  fill_grads(seed + 2000003);
}

std::vector<octavo::TensorArgs> TensorSet::args() const {
  std::vector<octavo::TensorArgs> result;
  for (const TensorBuffers& t : tensors_) result.push_back(t.args());
  return result;
}

void TensorSet::fill_grads(std::uint64_t seed, bool special) {
  Random random(seed);
  for (TensorBuffers& t : tensors_) {
    const std::vector<float> values = spread_values(t.spec.numel, random.bits(), 8);
    for (std::int64_t i = 0; i < t.spec.numel; ++i) {
      const bool replace = special && random.chance(97);
      const float value = replace ? special_value(random) : 0.01f * values[static_cast<std::size_t>(i)];
      reference::store_nearest(t.spec.grad_dtype, t.grad.data(), i, value);
    }
  }
}

void TensorSet::fill_params(std::uint64_t seed) {
  Random random(seed);
  for (TensorBuffers& t : tensors_) {
    const std::vector<float> values = spread_values(t.spec.numel, random.bits(), 4);
    for (std::int64_t i = 0; i < t.spec.numel; ++i) {
      reference::store_nearest(t.spec.param_dtype, t.param.data(), i, values[static_cast<std::size_t>(i)]);
    }
  }
}

std::string TensorSet::difference(const TensorSet& other) const {
  std::string text;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto mine = written(tensors_[i]);
    const auto theirs = written(other.tensors_[i]);
    for (std::size_t k = 0; k < mine.size(); ++k) {
      const Buffer& a = *mine[k].second;
      const Buffer& b = *theirs[k].second;
      if (!a.surroundings_intact() || !b.surroundings_intact()) {
        text += "tensor " + std::to_string(i) + " " + mine[k].first + ": bytes around it changed\n";
      }
      if (a.size() != 0 && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size())) != 0) {
        text += describe(mine[k].first, i, a, b);
      }
    }
  }
  return text;
}

std::uint64_t TensorSet::hash() const {
  std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const TensorBuffers& t : tensors_) {
    for (const auto& [what, buffer] : written(t)) {
      for (const std::byte byte : buffer->bytes())
        hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3u;
    }
  }
  return hash;
}

octavo::TensorSpec tensor_spec(std::int64_t numel, octavo::DType param, octavo::DType grad,
                               octavo::WeightStore store, octavo::StateFormat format,
                               std::int64_t block_size) {
  octavo::TensorSpec spec;
  spec.numel = numel;
  spec.param_dtype = param;
  spec.grad_dtype = grad;
  spec.store = store;
  spec.format = format;
  spec.block_size = block_size;
  return spec;
}

void give_shape(octavo::TensorSpec& spec) {
  for (const std::int64_t rows : {64, 16, 7, 3, 2}) {
    if (spec.numel > 0 && spec.numel % rows == 0) {
      spec.shape = {rows, 1, spec.numel / rows};
      spec.ndim = 3;
      return;
    }
  }
  spec.shape = {spec.numel, 1};
  spec.ndim = 2;
}

}  // namespace test
