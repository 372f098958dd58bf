// The vocabulary of the library: element types, state formats, weight stores, algorithms, and their names.
// The numeric values are part of the C ABI and never change.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/export.h>
#include <octavo/status.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace octavo {

enum class DType : std::uint32_t { f32 = 0, bf16 = 1, f16 = 2 };

// The storage of the optimizer's moments; docs/formats.md describes every byte.
enum class StateFormat : std::uint32_t {
  fp32 = 0,
  bf16 = 1,        // m is rounded to nearest, v stochastically, because v could not decrease otherwise
  int8 = 2,        // "8bit": dynamic maps in blocks of 256
  int4 = 3,        // "4bit": dynamic-exponent m, linear v without zero, blocks of 128
  int4_rank1 = 4,  // "4bit-rank1": as 4bit, with v scaled by the smallest of its per-axis maxima
  fp8_e4m3 = 5,    // "fp8"
  fp8_e5m2 = 6,    // "fp8-e5m2"
  int4_int8 = 7,   // "4bit/8bit": m as in 4bit, v as in 8bit, blocks of 128
  fp4 = 8,         // "fp4": E2M1 m, E3M1 v without zero, rounded stochastically, blocks of 128
  fp3 = 9,         // "fp3": as fp4 without the bit of mantissa
};

// The precision that a parameter has beyond its element type.
enum class WeightStore : std::uint32_t {
  nearest = 0,     // any dtype, rounded to nearest even
  stochastic = 1,  // bf16, rounded up with a probability equal to the truncated fraction
  residual8 = 2,   // bf16 + one byte: a 24-bit master
  residual16 = 3,  // bf16 + two bytes: equal in bits to an fp32 master
};

// The algorithms that a user can name. A build may have more, whose numbers begin at 1000; describe.h lists
// all of them.
enum class Algorithm : std::uint32_t {
  adam = 0,   // weight decay added to the gradient
  adamw = 1,  // weight decay applied to the parameter
  sgd = 2,    // with or without momentum
  lion = 3,
  rmsprop = 4,  // with or without momentum, centered or not
  adagrad = 5,
  lars = 6,      // sgd with momentum, scaled by the norms of a tensor's weights and updates
  lamb = 7,      // adamw, scaled by the same norms
  ademamix = 8,  // adamw with a second, slow average of the gradients
};

// The kind of a moment, which decides its map. A positive second moment never becomes zero.
enum class Moment : std::uint32_t { first = 0, second = 1 };

// The location of a tensor's state, and the processor that updates it.
enum class Residence : std::uint32_t {
  device = 0,  // in the memory of the parameter's device, which updates it
  host = 1,    // in host memory, updated by the CPU: gradients are copied down, weights up
  stream = 2,  // in host memory, copied to the parameter's device in chunks and updated there
};

// The device of a tensor. A group's tensors, its workspace and its scalars are all on one device.
enum class DeviceKind : std::uint32_t { cpu = 0, cuda = 1 };
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

// The maximum number of moments of one tensor (m, v and amsgrad's maximum of v).
inline constexpr int kMaxSlots = 3;
inline constexpr int kMaxDims = 8;
// The maximum number of an algorithm's hyper-parameters beyond the common ones.
inline constexpr int kMaxOwn = 8;
// States of parameters with fewer elements in all are not quantized (see format_for in layout.h).
inline constexpr std::int64_t kMinQuantizedSize = 4096;
inline constexpr std::int64_t kMinBlockSize = 32;
inline constexpr std::int64_t kMaxBlockSize = 4096;

OCTAVO_API std::string_view name(DType value);
OCTAVO_API std::string_view name(StateFormat value);
OCTAVO_API std::string_view name(WeightStore value);
OCTAVO_API std::string_view name(Algorithm value);

// These return all values in the order of their numbers, as `octavo info` lists them.
OCTAVO_API std::span<const DType> all_dtypes();
OCTAVO_API std::span<const StateFormat> all_state_formats();
OCTAVO_API std::span<const WeightStore> all_weight_stores();
OCTAVO_API std::span<const Algorithm> all_algorithms();

// These return the value of a name. The error for an unknown name lists the supported names.
OCTAVO_API Result<DType> parse_dtype(std::string_view text);
OCTAVO_API Result<StateFormat> parse_state_format(std::string_view text);
OCTAVO_API Result<WeightStore> parse_weight_store(std::string_view text);
OCTAVO_API Result<Algorithm> parse_algorithm(std::string_view text);

OCTAVO_API std::int64_t dtype_bytes(DType value);
// Returns the format's default block size; 0 for formats without blocks (fp32, bf16).
OCTAVO_API std::int64_t default_block_size(StateFormat value);

}  // namespace octavo
