// The step of one run of elements: load, decode, formula, encode, store, tile by tile. One template for every
// algorithm and format; the rest (element types, decay, Nesterov, block size) is chosen at run time per tile.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/block_codec.h"
#include "cpu/kernels.h"
#include "cpu/tile_io.h"
#include "formula/narrow.h"

#include <utility>

namespace octavo::cpu {

template <class L, class Algo, class Codec>
class TileStep {
  using F = typename L::F;
  using I = typename L::I;
  using Consts = typename Algo::Consts;
  static constexpr std::int64_t kW = L::kWidth;
  static constexpr int kSlots = Algo::kSlots;

  template <int kSlot>
  static constexpr bool kOwnScale = Codec::kRank1 && Algo::kMoments[kSlot] == Moment::second;

  template <class Fn>
  static void for_slots(Fn&& f) {
    [&]<int... kSlot>(std::integer_sequence<int, kSlot...>) {
      (f(std::integral_constant<int, kSlot>{}), ...);
    }(std::make_integer_sequence<int, kSlots>{});
  }

 public:
  static void run(const StepTask& t) {
    const std::int64_t tile = t.block > kTile ? t.block : kTile;
    for (std::int64_t done = 0; done < t.count; done += tile) {
      const std::int64_t rest = t.count - done;
      TileStep(t, t.begin + done, rest < tile ? rest : tile).run_tile();
    }
  }

 private:
  TileStep(const StepTask& task, std::int64_t at, std::int64_t n) : t_(task), s_(*task.scratch), at_(at), n_(n) {}

  void run_tile() {
    const bool whole = n_ % kW == 0;
    // fp32 arrays whose vectors do not overrun the tile are used in place; all else is widened into scratch.
    const bool param_in_place = t_.param_dtype == DType::f32 && whole && !t_.measure;
    param_ = param_in_place ? static_cast<float*>(t_.param) + at_ : s_.param;
    if (!param_in_place) load_weights<L>(t_, at_, n_, s_.param);
    if (t_.grad_dtype == DType::f32 && whole) {
      grad_ = static_cast<const float*>(t_.grad) + at_;
    } else {
      load_values<L>(t_.grad, t_.grad_dtype, at_, n_, s_.grad);
      grad_ = s_.grad;
    }
    for_slots([&](auto slot) { open<slot()>(whole); });

    if constexpr (Codec::kBlocked) {
      for (std::int64_t b = 0; b < n_; b += t_.block) run_block(b, n_ - b < t_.block ? n_ - b : t_.block);
    } else {
      run_block(0, n_);
    }

    for_slots([&](auto slot) { close<slot()>(); });
    if (!param_in_place && !t_.measure) store_weights<L>(t_, s_.param, at_, n_);
  }

  template <int kSlot>
  void open(bool whole) {
    if constexpr (Codec::kBlocked) {
      codes_in_[kSlot] = codes_in<L, Codec>(t_.codes[kSlot], at_, n_, s_.codes[kSlot]);
      codes_out_[kSlot] = codes_out<L, Codec>(t_.codes[kSlot], at_, n_, s_.codes[kSlot]);
      state_[kSlot] = s_.state[kSlot];
      if constexpr (kOwnScale<kSlot>) {
        rank1_scales(t_.shape, t_.scales_in[kSlot], at_, n_, s_.scale_in[kSlot]);
        if (!t_.measure) rank1_scales(t_.shape, t_.scales_out[kSlot], at_, n_, s_.scale_out[kSlot]);
      }
    } else if (Codec::kBits == 32 && whole) {
      state_[kSlot] = static_cast<float*>(t_.codes[kSlot]) + at_;
    } else {
      state_[kSlot] = s_.state[kSlot];
      load_values<L>(t_.codes[kSlot], Codec::kBits == 32 ? DType::f32 : DType::bf16, at_, n_, s_.state[kSlot]);
    }
  }

  // Reads n elements from b on, writes weights and new moments, and encodes the moments of blocked formats.
  void run_block(std::int64_t b, std::int64_t n) {
    const Consts c = *static_cast<const Consts*>(t_.consts);
    F scales[kSlots + 1];
    I maxima[kSlots + 1];
    for_slots([&](auto slot) {
      maxima[slot()] = I(0);
      if constexpr (Codec::kBlocked && !kOwnScale<slot()>) scales[slot()] = F(t_.scales_in[slot()][(at_ + b) / t_.block]);
    });

    std::int64_t i = b;
    for (; i + kW <= b + n; i += kW) run_vector<false>(c, i, 0, scales, maxima);
    if (i < b + n) run_vector<true>(c, i, b + n - i, scales, maxima);

    if constexpr (Codec::kBlocked) {
      if (t_.measure) return;
      for_slots([&](auto slot) {
        constexpr int kSlot = slot();
        constexpr Moment kMoment = Algo::kMoments[kSlot];
        if constexpr (kOwnScale<kSlot>) {
          encode_scaled<L, Codec, kMoment>(state_[kSlot] + b, s_.scale_out[kSlot] + b, n, codes_out_[kSlot] + b);
        } else {
          t_.scales_out[kSlot][(at_ + b) / t_.block] = encode_block<L, Codec, kMoment>(
              state_[kSlot] + b, n, L::reduce_max_u31(maxima[kSlot]), codes_out_[kSlot] + b);
        }
      });
    }
  }

  // One vector of elements. In a tail, lanes from `valid` on hold nothing: they must not reach the block's maximum.
  template <bool kTail>
  void run_vector(const Consts& c, std::int64_t i, std::int64_t valid, const F* scales, I* maxima) {
    F s[kSlots + 1];
    for_slots([&](auto slot) {
      constexpr int kSlot = slot();
      if constexpr (Codec::kBlocked) {
        const F value = Codec::template decode<Algo::kMoments[kSlot], L>(L::load_u8(codes_in_[kSlot] + i));
        s[kSlot] = value * (kOwnScale<kSlot> ? L::load(s_.scale_in[kSlot] + i) : scales[kSlot]);
      } else {
        s[kSlot] = L::load(state_[kSlot] + i);
      }
    });
    const F p = Algo::update(c, L::load(grad_ + i), L::load(param_ + i), s);
    L::store(formula::canonical(p), param_ + i);
    for_slots([&](auto slot) {
      constexpr int kSlot = slot();
      if constexpr (Codec::kBlocked) {
        if constexpr (kTail) s[kSlot] = select(L::iota() < I(static_cast<std::int32_t>(valid)), s[kSlot], F(0.0F));
        maxima[kSlot] = max(maxima[kSlot], bits(s[kSlot]) & I(0x7FFFFFFF));
        L::store(s[kSlot], state_[kSlot] + i);
      } else {
        L::store(formula::canonical(s[kSlot]), state_[kSlot] + i);
      }
    });
  }

  template <int kSlot>
  void close() {
    constexpr Moment kMoment = Algo::kMoments[kSlot];
    if (t_.measure) {
      if constexpr (kOwnScale<kSlot>) raise_axis_maxima(t_.shape, state_[kSlot], at_, n_, t_.scales_out[kSlot]);
    } else if constexpr (Codec::kBlocked) {
      finish_codes<Codec>(codes_out_[kSlot], t_.codes[kSlot], at_, n_);
    } else if constexpr (Codec::kBits == 16) {
      auto* to = static_cast<std::uint16_t*>(t_.codes[kSlot]);
      if constexpr (kMoment == Moment::second) {
        store_bf16_stochastic<L>(s_.state[kSlot], n_, to + at_, t_.keys[1 + kSlot],
                                 t_.index + static_cast<std::uint64_t>(at_ - t_.begin), true);
      } else {
        store_values<L>(s_.state[kSlot], n_, to, DType::bf16, at_);
      }
    } else if (state_[kSlot] == s_.state[kSlot]) {
      store_values<L>(s_.state[kSlot], n_, t_.codes[kSlot], DType::f32, at_);
    }
  }

  const StepTask& t_;
  Scratch& s_;
  const std::int64_t at_, n_;
  float* param_ = nullptr;
  const float* grad_ = nullptr;
  float* state_[kSlots + 1] = {};
  const std::uint8_t* codes_in_[kSlots + 1] = {};
  std::uint8_t* codes_out_[kSlots + 1] = {};
};

}  // namespace octavo::cpu
