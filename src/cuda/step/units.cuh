// Assigns units of work to warps: finds a warp's next tile and its properties.
//
// A unit is a tile of 512 elements, or a block if that is larger. The units of all tensors of a launch are
// numbered consecutively, and a warp requests a few neighbouring units at a time. A unit's tensor is found by
// the map of the launch (tensor_table.h). If shared memory has space, the tensor's entry is copied there once
// and used as long as the warp stays in the tensor. All lanes of a warp have the same Work.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/tile_io.cuh"
#include "cuda/step/traits.cuh"
#include "cuda/step/weights.cuh"

namespace octavo::cuda {

template <class Algo, class Format, WeightKind kKind>
class StepUnits : protected StepTraits<Algo, Format> {
 protected:
  using Traits = StepTraits<Algo, Format>;
  using Traits::kQuick, Traits::kSlots, Traits::lane, typename Traits::Codes, typename Traits::Consts;
  template <int... kSlot>
  static TileArrays<kKind, Format::kBlocked, Traits::template Codec<kSlot>::kBits...> arrays(
      std::integer_sequence<int, kSlot...>);
  using Arrays = decltype(arrays(std::make_integer_sequence<int, kSlots>{}));
  static constexpr bool kFetches = kStaged && kQuick;
  using Eights = Weights<kKind, Arrays>;

 public:
  using Map = SharedMap<Codes, Arrays>;
  static constexpr bool kHasQuick = kQuick;
  // These numbers were measured: formats with more computation gain from fewer requests.
  static constexpr std::uint32_t kTogether = Codes::kCopied ? 8 : 4;

  __device__ StepUnits(const StepParams& params, const Prepared& prepared, std::uint32_t warp)
      : params_(params),
        prepared_(prepared),
        c_(*reinterpret_cast<const Consts*>(prepared.consts)),
        in_range_(prepared.in_range != 0),
        stages_(Map::stage_of(tables(), warp)),
        lane_(lane_id()) {
    // Operands from the constant bank cost no registers.
    const auto& host = *reinterpret_cast<const Consts*>(params.constants.consts);
    Algo::copy_fixed(host, c_);
    c_.decay = host.decay;
    c_.coupled = host.coupled;
  }

 protected:
  // Opaque to the compiler, so that it stays in its register.
  static __device__ std::uint32_t lane_id() {
    std::uint32_t out;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(out));
    return out;
  }

  // A unit of work, small enough to stay in registers while another is processed.
  struct Work {
    std::uint32_t entry;        // its tensor's entry
    std::uint32_t index;        // its index in the tensor
    std::uint32_t quick_units;  // of the tensor
    std::uint32_t stage;        // the stage that it is fetched to
    std::uint32_t flags;
    std::uint32_t slot;  // its entry's slot, from the start of shared memory
  };
  // The most common types of weights and gradients, with default blocks, and none of the flags below.
  static constexpr std::uint32_t kUsual = 1;
  static constexpr std::uint32_t kOtherWidth = 2;  // gradients whose width differs from that of the weights
  static constexpr std::uint32_t kUnaligned = 4;   // the gradients are unaligned
  static constexpr std::uint32_t kEnd = 8;         // the end of a tensor, less than a tile
  static constexpr std::uint32_t kLarge = 16;      // a block that is larger than a tile
  __device__ Stage stage(const Work& work) const { return {work.stage, lane_}; }
  // Returns true if the unit is aligned and of a common block size, so that vectors process it.
  static __device__ bool quick(const Work& work) { return kQuick && work.index < work.quick_units; }
  // Returns true for a block of several tiles. Vectors process it, too, but it is not fetched ahead.
  static __device__ bool large_unit(const Work& work) { return kQuick && (work.flags & kLarge) != 0; }

  static constexpr bool kCachesEntries = Map::caches_entries(kArch);
  __device__ const TensorEntry& entry(const Work& work) const {
    if constexpr (!kCachesEntries) return params_.tensors[work.entry];
    return *reinterpret_cast<const TensorEntry*>(shared_memory() + work.slot);
  }

  // Returns the first unit of request number `turn`: several units at first, and one at a time towards the
  // end, so that warps end together.
  __device__ std::uint32_t unit_of(std::uint32_t turn) const {
    const std::uint32_t turns = params_.grouped / kTogether;
    return turn < turns ? turn * kTogether : params_.grouped + (turn - turns);
  }

  // Lane 0 counts for the warp. The last warp of a launch resets the counters.
  __device__ std::uint32_t request_unit() const { return lane() == 0 ? atomicAdd(params_.counters, 1U) : 0U; }
  static __device__ std::uint32_t broadcast_unit(std::uint32_t requested) {
    return __shfl_sync(~0U, requested, 0);
  }
  __device__ void finish(std::uint32_t warps) const {
    if (lane() != 0) return;
    __threadfence();  // ordered after the requested copies
    if (atomicAdd(params_.counters + 1, 1U) == warps - 1) params_.counters[0] = params_.counters[1] = 0;
  }

  // `before` is a tile of the same warp, whose entry is reused if it is the same.
  template <bool kSumsOnly>
  __device__ Work find(std::uint32_t unit, const Work& before) const {
    std::uint32_t number = params_.map[unit / kMapStep];
    while (params_.tensors[number + 1].first_unit <= unit) ++number;
    Work out;
    out.entry = number;
    out.slot = before.slot;
    if constexpr (kCachesEntries)
      if (number != before.entry) out.slot = load_entry(first_slot(), number, before.slot);
    const TensorEntry* t = &entry(out);
    const std::uint32_t index = unit - t->first_unit;
    std::uint32_t quick = in_range_ ? t->quick_units : 0U;
    std::uint32_t flags = is_f32(t->grad_dtype) == Arrays::kWideWeights ? 0U : kOtherWidth;
    if (t->aligned == 0) flags |= kUnaligned;
    if (!kSumsOnly && in_range_) {  // a lane that repeats the work of another would count it twice
      if (t->quick_large != 0) {
        if (t->quick_end != 0 || (index + std::int64_t{1}) * t->block <= t->numel) flags |= kLarge;
      } else if (kStaged && t->quick_end != 0 && index == quick) {
        ++quick;  // not without stages: one lane would load what another has already changed
        flags |= kEnd;
      }
    }
    if (flags == 0 && t->usual != 0) flags = kUsual;
    out.index = index;
    out.quick_units = quick;
    out.flags = flags;
    return out;
  }

  // Returns the first of the warp's two slots for entries.
  __device__ std::uint32_t first_slot() const { return stages_ - tables() + Map::kEntriesAt; }
  // Returns the state before a warp's first tile: no tensor, and the second slot.
  __device__ Work nothing() const {
    Work out{};
    out.slot = first_slot() + kEntryBytes;
    out.entry = ~0U;
    return out;
  }
  // Copies a tensor's entry to the other one of the warp's two slots, the first of which is `first`.
  __device__ std::uint32_t load_entry(std::uint32_t first, std::uint32_t number, std::uint32_t slot) const {
    const std::uint32_t other = slot == first ? first + kEntryBytes : first;
    __syncwarp();  // no lane still reads the previous entry
    const auto* from = reinterpret_cast<const uint4*>(params_.tensors + number);
    auto* to = reinterpret_cast<uint4*>(shared_memory() + other);
    for (std::uint32_t i = lane_; i < sizeof(TensorEntry) / 16; i += 32) to[i] = from[i];
    __syncwarp();
    return other;
  }

  const StepParams& params_;
  const Prepared& prepared_;
  Consts c_;
  const bool in_range_;
  const std::uint32_t stages_;  // the warp's two stages
  const std::uint32_t lane_;
};

}  // namespace octavo::cuda
