// State formats and weight stores on their own: convert a moment between fp32 and any format, bf16 weights
// with their master bits to fp32 and back, and inspect what a conversion loses.
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

// Bytes and floats of one moment.
OCTAVO_API Result<SlotLayout> layout(const MomentSpec& spec);

// fp32 -> format. `values` has spec.numel elements; the outputs have the sizes of layout(spec). bf16 rounds
// to nearest here: a conversion has no step number, which stochastic rounding needs.
OCTAVO_API Status encode(const MomentSpec& spec, std::span<const float> values, std::span<std::byte> codes,
                         std::span<float> scales);

// format -> fp32.
OCTAVO_API Status decode(const MomentSpec& spec, std::span<const std::byte> codes,
                         std::span<const float> scales, std::span<float> values);

// Any format -> any format and block size of the same moment, through fp32 in pieces, so that no fp32 copy of
// the whole tensor is needed. (From or to 4bit-rank1 the piece is the whole tensor.)
OCTAVO_API Status convert(const MomentSpec& from, std::span<const std::byte> from_codes,
                          std::span<const float> from_scales, const MomentSpec& to,
                          std::span<std::byte> to_codes, std::span<float> to_scales);

// The fp32 values of bf16 weights and what the store keeps besides: `residual` has residual_bytes(store,
// numel) bytes. docs/formats.md, weight stores.
OCTAVO_API std::int64_t residual_bytes(WeightStore store, std::int64_t numel);
OCTAVO_API Status join_weights(WeightStore store, std::span<const std::uint16_t> weights,
                               std::span<const std::byte> residual, std::span<float> values);

// fp32 values -> bf16 weights and their residual, as a step writes them. `stochastic` rounds to nearest here:
// a conversion has no step number.
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

// What a stored moment holds, compared with `reference` (spec.numel floats, or none: errors are then 0).
OCTAVO_API Result<MomentReport> inspect(const MomentSpec& spec, std::span<const std::byte> codes,
                                        std::span<const float> scales, std::span<const float> reference);

}  // namespace octavo
