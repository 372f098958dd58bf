// The buffers that a tensor needs for its algorithm and format.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace octavo {

// The options that fix the moments. The other hyper-parameters may change at every step.
struct GroupConfig {
  Algorithm algorithm = Algorithm::adamw;
  bool amsgrad = false;  // adam and adamw: keep the running maximum of v, a third moment
  bool momentum = true;  // sgd: false keeps no state at all
  Device device{};       // where every buffer of the group is
  // One bit for every option that changes the moments (describe.h): bit i is the i-th of the algorithm.
  // `amsgrad` and `momentum` are bits too, if the algorithm has the option.
  std::uint32_t switches = 0;
};

// A tensor's description, without its buffers.
struct TensorSpec {
  std::int64_t numel = 0;
  std::array<std::int64_t, kMaxDims> shape{};  // used by 4bit-rank1; its product must be numel when ndim > 0
  int ndim = 0;                                // 0: treated as one dimension
  DType param_dtype = DType::f32;
  DType grad_dtype = DType::f32;
  WeightStore store = WeightStore::nearest;
  StateFormat format = StateFormat::fp32;
  std::int64_t block_size = 0;  // 0: the format's default
};

struct SlotLayout {
  std::int64_t codes_bytes = 0;
  std::int64_t scales = 0;  // number of floats
};

struct TensorLayout {
  int slots = 0;
  std::array<SlotLayout, kMaxSlots> slot{};
  std::int64_t residual_bytes = 0;
  std::int64_t workspace_bytes = 0;  // on the CPU

  // Codes and scales of all moments; this is what "bytes per parameter" counts.
  [[nodiscard]] std::int64_t state_bytes() const {
    std::int64_t total = 0;
    for (int i = 0; i < slots; ++i) {
      const auto& s = slot[static_cast<std::size_t>(i)];
      total += s.codes_bytes + 4 * s.scales;
    }
    return total;
  }
};

// The sizes are exact: the planner and the benchmark print these numbers.
OCTAVO_API Result<TensorLayout> layout(const GroupConfig& config, const TensorSpec& spec);

// The format that a parameter gets if `wanted` is requested: the one rule of all adapters. Below
// `min_quantized_size` elements formats with blocks become fp32; fp32 and bf16 stay. `whole_numel` is the
// size of the complete parameter, never of a shard, so that sharding does not change precision. It is an
// error if `wanted` has scales that belong to the complete parameter (4bit-rank1) and the tensor is
// `sharded`.
OCTAVO_API Result<StateFormat> format_for(StateFormat wanted, std::int64_t whole_numel,
                                          std::int64_t min_quantized_size = kMinQuantizedSize,
                                          bool sharded = false);

}  // namespace octavo
