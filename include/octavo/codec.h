// Converts moments between fp32 and any state format, and bf16 weights with their master bits to fp32 and
// back. It also measures what a conversion loses.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/layout.h>
#include <octavo/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace octavo {

// One moment of one tensor.
struct MomentSpec {
  Moment moment = Moment::first;
  StateFormat format = StateFormat::int8;
  std::int64_t block_size = 0;  // 0: the format's default
  std::int64_t numel = 0;
  std::array<std::int64_t, kMaxDims> shape{};  // for 4bit-rank1
  int ndim = 0;
};

// Returns the sizes of one moment's codes (bytes) and scales (floats).
OCTAVO_API Result<SlotLayout> layout(const MomentSpec& spec);

// Converts fp32 to the format. `values` has spec.numel elements; the outputs have the sizes of layout(spec).
// bf16 rounds to nearest here, because stochastic rounding needs a step number, which a conversion lacks.
OCTAVO_API Status encode(const MomentSpec& spec, std::span<const float> values, std::span<std::byte> codes,
                         std::span<float> scales);

// Converts the format to fp32.
OCTAVO_API Status decode(const MomentSpec& spec, std::span<const std::byte> codes,
                         std::span<const float> scales, std::span<float> values);

// Converts between any two formats and block sizes of the same moment. The conversion goes through fp32 in
// chunks, so it needs no fp32 copy of the tensor. If one of the formats is 4bit-rank1 the chunk is the
// tensor.
OCTAVO_API Status convert(const MomentSpec& from, std::span<const std::byte> from_codes,
                          std::span<const float> from_scales, const MomentSpec& to,
                          std::span<std::byte> to_codes, std::span<float> to_scales);

// Restores the fp32 values of bf16 weights and their residual, which has residual_bytes(store, numel) bytes
// (docs/formats.md, weight stores).
OCTAVO_API std::int64_t residual_bytes(WeightStore store, std::int64_t numel);
OCTAVO_API Status join_weights(WeightStore store, std::span<const std::uint16_t> weights,
                               std::span<const std::byte> residual, std::span<float> values);

// Splits fp32 values into bf16 weights and their residual, as a step writes them. `stochastic` rounds to
// nearest here, because a conversion has no step number.
OCTAVO_API Status split_weights(WeightStore store, std::span<const float> values,
                                std::span<std::uint16_t> weights, std::span<std::byte> residual);

struct MomentReport {
  std::int64_t bytes = 0;       // codes and scales
  double max_error = 0.0;       // largest |decoded - reference|
  double relative_error = 0.0;  // ||decoded - reference|| / ||reference||
  std::int64_t saturated = 0;   // elements on the outermost code of their block
  std::int64_t zeros = 0;       // elements that decode to zero
  std::int64_t lost = 0;        // nonzero in the reference, zero when decoded
  std::int64_t nonfinite = 0;   // elements that decode to NaN or infinity
};

// Compares a stored moment with `reference`, which has spec.numel floats. If it is empty, the errors are 0.
OCTAVO_API Result<MomentReport> inspect(const MomentSpec& spec, std::span<const std::byte> codes,
                                        std::span<const float> scales, std::span<const float> reference);

}  // namespace octavo
