// The step of one run of elements, tile by tile: load, decode, formula, encode, store. There is one template
// for every algorithm and format. Everything else (element types, decay, Nesterov, block size) is chosen at
// run time per tile.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/block_codec.h"
#include "cpu/kernels.h"
#include "cpu/rank1_tile.h"
#include "cpu/tile_io.h"
#include "cpu/tile_sums.h"
#include "formula/narrow.h"

#include <utility>

namespace octavo::cpu {

template <class L, class Algo, class Format>
class TileStep {
  using F = typename L::F;
  using I = typename L::I;
  using Consts = typename Algo::Consts;
  static constexpr std::int64_t kW = L::kWidth;
  static constexpr int kSlots = Algo::kSlots;
  static constexpr bool kHasTrustRatio = formula::kHasTrustRatio<Algo>;

  template <int kSlot>
  static constexpr Moment kMoment = Algo::kMoments[kSlot];
  template <int kSlot>
  using Codec = typename Format::template Codec<kMoment<kSlot>>;
  template <int kSlot>
  static constexpr bool kOwnScale = Codec<kSlot>::kScale == ScalePolicy::axis;

  template <class Fn>
  static void for_slots(Fn&& f) {
    [&]<int... kSlot>(std::integer_sequence<int, kSlot...>) {
      (f(std::integral_constant<int, kSlot>{}), ...);
    }
    (std::make_integer_sequence<int, kSlots>{});
  }

 public:
  static void run(const StepTask& t) {
    if constexpr (kHasTrustRatio) {
      if (t.sums != nullptr) return TileStep(t).sum_run();
    }
    TileStep(t).run_tiles();
  }

 private:
  explicit TileStep(const StepTask& task)
      : t_(task),
        s_(*task.scratch),
        c_(*static_cast<const Consts*>(task.consts)),
        end_(task.begin + task.count),
        tile_(task.block > kTile ? task.block : kTile) {
    if constexpr (kHasTrustRatio) c_.ratio = task.ratio;
  }

  // Calls f for each tile of the run.
  template <class Fn>
  void for_tiles(Fn&& f) {
    for (at_ = t_.begin; at_ < end_; at_ += tile_) {
      n_ = end_ - at_ < tile_ ? end_ - at_ : tile_;
      if constexpr (Format::kBlocked) first_block_ = at_ / t_.block;
      f();
    }
  }
  // Calls f(first element, count, number) for each part of the tile that shares a scale.
  template <class Fn>
  void for_blocks(Fn&& f) {
    const std::int64_t size = span();
    for (std::int64_t b = 0, k = 0; b < n_; b += size, ++k) f(b, n_ - b < size ? n_ - b : size, k);
  }

  void run_tiles() {
    for_tiles([&] { run_tile(); });
  }

  void run_tile() {
    if constexpr (Format::kRank1) {
      if (t_.maxima_only) return raise_tile();
    }
    const bool in_place = open_tile(true);
    for_blocks([&](std::int64_t b, std::int64_t n, std::int64_t k) { run_block(b, n, k); });
    for_slots([&](auto slot) { close<slot()>(); });
    if (!in_place) store_weights<L>(t_, s_.param, at_, n_);
  }

  // The first pass for rank-1 scales: raises the maxima of the task to the new moments. Only these moments
  // are used, so the compiler removes the rest of the rule.
  void raise_tile() {
    open_tile(false);
    for_blocks([&](std::int64_t b, std::int64_t n, std::int64_t block) {
      const Consts c = c_;
      F scales[kSlots + 1];
      load_scales(block, scales);
      prefetch_weights(b, n);
      prefetch_grads(b, n);
      for (std::int64_t i = b; i < b + n; i += kW) {
        F s[kSlots + 1];
        load_moments(i, scales, s);
        const F p = L::load(param_ + i);
        (void)Algo::update(c, formula::gradient(c, L::load(grad_ + i), p), p, s);
        for_slots([&](auto slot) {
          if constexpr (kOwnScale<slot()>) L::store(s[slot()], state_[slot()] + i);
        });
      }
    });
    for_slots([&](auto slot) {
      if constexpr (kOwnScale<slot()>) {
        float* const maxima = t_.scales_out[slot()];
        raise_maxima<L>(t_.fold.columns, state_[slot()], at_, n_, t_.first_row, maxima,
                        maxima + t_.part_rows);
      }
    });
  }

  // Prepares the tile's values. fp32 arrays whose vectors do not overrun the tile are used in place; other
  // values are widened into scratch. Returns true if the weights are in place, which `may_be` allows.
  bool open_tile(bool may_be) {
    const bool whole = n_ % kW == 0;
    const bool in_place = t_.param_dtype == DType::f32 && whole && may_be;
    param_ = in_place ? static_cast<float*>(t_.param) + at_ : s_.param;
    if (!in_place) load_weights<L>(t_, at_, n_, s_.param);
    if (t_.grad_dtype == DType::f32 && whole) {
      grad_ = static_cast<const float*>(t_.grad) + at_;
    } else {
      load_values<L>(t_.grad, t_.grad_dtype, at_, n_, s_.grad);
      grad_ = s_.grad;
    }
    for_slots([&](auto slot) { open<slot()>(whole); });
    return in_place;
  }

  // The first pass of a rule with a trust ratio: writes each element's unscaled update to scratch, then adds
  // the squares.
  void sum_run() {
    formula::Sums tiles[kRunTiles] = {};
    formula::Sums* to = tiles;
    for_tiles([&] {
      open_tile(false);
      for_blocks([&](std::int64_t b, std::int64_t n, std::int64_t k) { sum_block(b, n, k); });
      to = sum_tiles<L>(s_.param, s_.update, n_, to);
    });
    *t_.sums = formula::tree_sum<L>(tiles, kRunTiles);
  }
  void sum_block(std::int64_t b, std::int64_t n, std::int64_t block) {
    const Consts c = c_;
    F scales[kSlots + 1];
    load_scales(block, scales);
    for (std::int64_t i = b; i < b + n; i += kW) {
      F s[kSlots + 1];
      load_moments(i, scales, s);
      const F p = L::load(param_ + i);
      L::store(Algo::unscaled_update(c, formula::gradient(c, L::load(grad_ + i), p), p, s), s_.update + i);
    }
  }

  // Returns the number of elements that share a scale. In formats without blocks the complete tile is one
  // block.
  [[nodiscard]] std::int64_t span() const { return Format::kBlocked ? t_.block : n_; }

  template <int kSlot>
  void open(bool whole) {
    using Own = Codec<kSlot>;
    if constexpr (Format::kBlocked) {
      state_[kSlot] = s_.state[kSlot];
      prefetch(codes_in<Own>(t_.codes[kSlot], at_ + kTile), 0, n_ * Own::kBits / 8);
      if (!ahead_[kSlot])
        decode_codes<L, Own, kMoment<kSlot>>(codes_in<Own>(t_.codes[kSlot], at_), n_, s_.state[kSlot],
                                             s_.codes[kSlot]);
      if constexpr (kOwnScale<kSlot>) {
        element_scales<L>(t_.fold, t_.scales_in[kSlot], at_, n_, s_.scale_in[kSlot]);
        if (!t_.maxima_only && t_.sums == nullptr)
          element_inverses<L>(t_.fold, t_.scales_out[kSlot], at_, n_, s_.inverse_out[kSlot]);
      }
    } else if (Own::kBits == 32 && whole) {
      state_[kSlot] = static_cast<float*>(t_.codes[kSlot]) + at_;
    } else {
      state_[kSlot] = s_.state[kSlot];
      load_values<L>(t_.codes[kSlot], Own::kBits == 32 ? DType::f32 : DType::bf16, at_, n_, s_.state[kSlot]);
    }
  }

  // Loads the scales of the tile's block number `block`.
  void load_scales(std::int64_t block, F* scales) const {
    if constexpr (Format::kBlocked) {
      for_slots([&](auto slot) {
        if constexpr (!kOwnScale<slot()>) scales[slot()] = F(t_.scales_in[slot()][first_block_ + block]);
      });
    }
  }
  // Loads the moments of the vector from element i on.
  void load_moments(std::int64_t i, const F* scales, F* s) const {
    for_slots([&](auto slot) {
      constexpr int kSlot = slot();
      s[kSlot] = L::load(state_[kSlot] + i);
      if constexpr (Format::kBlocked)
        s[kSlot] = s[kSlot] * (kOwnScale<kSlot> ? L::load(s_.scale_in[kSlot] + i) : scales[kSlot]);
    });
  }

  // Applies the formula to n elements from b on, in place on weights and moments, and then computes the
  // block's maxima.
  void run_block(std::int64_t b, std::int64_t n, std::int64_t block) {
    const Consts c = c_;
    F scales[kSlots + 1];
    I maxima[kSlots + 1];
    // A NaN or infinity among the stored values makes these NaN. This takes one instruction per vector, and
    // correcting each value would take several. Each slot has its own sum, because each sum waits for the
    // previous vector.
    F watch[kSlots + 1];
    load_scales(block, scales);
    std::int64_t i = b;
    for (; i + kW <= b + n; i += kW) run_vector<false>(c, i, 0, scales, maxima, watch);
    if (i < b + n) run_vector<true>(c, i, b + n - i, scales, maxima, watch);
    F sum = watch[kSlots];
    if constexpr (!Format::kBlocked) for_slots([&](auto slot) { sum = sum + watch[slot()]; });
    if (L::any_nan(sum)) [[unlikely]]
      make_canonical(b, n);
    if constexpr (Format::kBlocked) {
      for_slots([&](auto slot) { s_.max_bits[slot()][block] = L::reduce_max_u31(maxima[slot()]); });
    }
  }

  // A tile alternates between arithmetic and memory traffic, and hardware prefetchers stop at each page. So
  // each stage prefetches a part of the next tile, a few lines at a time, and the memory is busy during the
  // computation.
  template <class T>
  static void prefetch(const T* data, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kLine = 64;
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    for (std::int64_t at = begin; at < end; at += kLine) __builtin_prefetch(bytes + at, 0, 2);
  }
  void prefetch_weights(std::int64_t b, std::int64_t n) const {
    const std::int64_t size = dtype_bytes_of(t_.param_dtype);
    const std::int64_t at = at_ + b + kTile;
    prefetch(static_cast<const std::byte*>(t_.param), at * size, (at + n) * size);
  }
  void prefetch_grads(std::int64_t b, std::int64_t n) const {
    const std::int64_t size = dtype_bytes_of(t_.grad_dtype);
    const std::int64_t at = at_ + b + kTile;
    prefetch(static_cast<const std::byte*>(t_.grad), at * size, (at + n) * size);
  }
  static constexpr std::int64_t dtype_bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

  // Processes one vector. In a tail, lanes from `valid` on are undefined and must not reach the block's
  // maximum.
  template <bool kTail>
  void run_vector(const Consts& c, std::int64_t i, std::int64_t valid, const F* scales, I* maxima, F* watch) {
    F s[kSlots + 1];
    load_moments(i, scales, s);
    const F before = L::load(param_ + i);
    const F p = Algo::update(c, formula::gradient(c, L::load(grad_ + i), before), before, s);
    L::store(p, param_ + i);
    watch[kSlots] = fma(p, F(0.0F), watch[kSlots]);
    for_slots([&](auto slot) {
      constexpr int kSlot = slot();
      if constexpr (Format::kBlocked) {
        if constexpr (kTail)
          s[kSlot] = select(L::iota() < I(static_cast<std::int32_t>(valid)), s[kSlot], F(0.0F));
        maxima[kSlot] = max(maxima[kSlot], bits(s[kSlot]) & I(0x7FFFFFFF));
      } else {
        watch[kSlot] = fma(s[kSlot], F(0.0F), watch[kSlot]);
      }
      L::store(s[kSlot], state_[kSlot] + i);
    });
  }

  // Encodes the moments of the tile. All blocks are encoded together, after the formula: each block's scale
  // waits for its maximum and for two divisions, and these waits overlap here.
  template <int kSlot>
  void encode() {
    using Own = Codec<kSlot>;
    std::uint8_t* out = codes_out<L, Own>(t_.codes[kSlot], at_, n_, s_.codes[kSlot]);
    if constexpr (kOwnScale<kSlot>) {
      if (kSlot == 0) prefetch_weights(0, n_);
      if (kSlot == kSlots - 1) prefetch_grads(0, n_);
      encode_by_inverses<L, Own, kMoment<kSlot>>(state_[kSlot], s_.inverse_out[kSlot], n_, out);
    } else {
      using Beside = DecodeBeside<L, Own, kMoment<kSlot>>;
      if constexpr (Beside::kWorthwhile) {
        ahead_[kSlot] = at_ + 2 * tile_ <= end_ && t_.block % Beside::kLag == 0;
        if (ahead_[kSlot]) {
          const Beside next{codes_in<Own>(t_.codes[kSlot], at_ + tile_), state_[kSlot], n_};
          encode_blocks<kSlot>(out, next);
          next.finish();
          return;
        }
      }
      encode_blocks<kSlot>(out, NothingBeside{});
    }
    finish_codes<L, Own>(out, t_.codes[kSlot], at_, n_);
  }
  template <int kSlot, class Beside>
  void encode_blocks(std::uint8_t* out, const Beside& beside) {
    for_blocks([&](std::int64_t b, std::int64_t n, std::int64_t block) {
      if (kSlot == 0) prefetch_weights(b, n);
      if (kSlot == kSlots - 1) prefetch_grads(b, n);
      const auto encode = [&](const auto&... added) {
        return encode_block<L, Codec<kSlot>, kMoment<kSlot>>(state_[kSlot] + b, n, s_.max_bits[kSlot][block],
                                                             out + b, beside, b, added...);
      };
      float& scale = t_.scales_out[kSlot][first_block_ + block];
      if constexpr (codecs::kStochasticCodes<Codec<kSlot>, kMoment<kSlot>>) {
        scale = encode(RoundsByKey<L, Codec<kSlot>, kMoment<kSlot>, kSlot>{
            t_.keys[formula::code_stream(kSlot)], index_of(at_ + b)});
      } else {
        scale = encode();
      }
    });
  }

  // Returns the index of the tensor's element `at` in the complete parameter.
  [[nodiscard]] std::uint64_t index_of(std::int64_t at) const {
    return t_.index + static_cast<std::uint64_t>(at - t_.begin);
  }

  // Rewrites the NaNs that the step stored in the canonical form.
  void make_canonical(std::int64_t b, std::int64_t n) {
    const auto mend = [&](float* values) {
      for (std::int64_t i = 0; i < n; i += kW) L::store(formula::canonical(L::load(values + i)), values + i);
    };
    mend(param_ + b);
    if constexpr (!Format::kBlocked) for_slots([&](auto slot) { mend(state_[slot()] + b); });
  }

  template <int kSlot>
  void close() {
    if constexpr (Format::kBlocked) {
      encode<kSlot>();
    } else if constexpr (Codec<kSlot>::kBits == 16) {
      const std::uint64_t index = index_of(at_);
      narrow<L>(s_.state[kSlot], n_, static_cast<std::uint16_t*>(t_.codes[kSlot]) + at_,
                [&](F x, std::uint16_t* p, std::int64_t i) {
                  L::store_u16(Codec<kSlot>::template encode<kMoment<kSlot>>(
                                   x, t_.keys[1 + kSlot], index + static_cast<std::uint64_t>(i), L::iota()),
                               p);
                });
    } else if (state_[kSlot] == s_.state[kSlot]) {
      store_values<L>(s_.state[kSlot], n_, t_.codes[kSlot], DType::f32, at_);
    }
  }

  const StepTask& t_;
  Scratch& s_;
  Consts c_;
  const std::int64_t end_;
  const std::int64_t tile_;
  std::int64_t at_ = 0, n_ = 0;   // the tile's first element and size
  std::int64_t first_block_ = 0;  // the number of the tile's first block in the tensor
  bool ahead_[kSlots + 1] = {};   // true if the next tile's codes are decoded already
  float* param_ = nullptr;
  const float* grad_ = nullptr;
  float* state_[kSlots + 1] = {};
};

}  // namespace octavo::cpu
