// The kernels of the joint loss. A warp processes one row of a tile when rows are computed or read. When
// logits become gradients, a thread processes eight columns of many rows and sums them for the bias. No
// result depends on the grid, and there are no atomics.
// SPDX-License-Identifier: MIT
#include "transducer/cuda/joint.h"

#include "transducer/cuda/rows.cuh"

#include <algorithm>

namespace octavo::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

template <DType kType>
__device__ inline const uint4* vectors_of(const void* base, std::int64_t element) {
  return reinterpret_cast<const uint4*>(static_cast<const char*>(base) + element * (16 / kVector<kType>));
}
template <DType kType>
__device__ inline uint4* vectors_of(void* base, std::int64_t element) {
  return reinterpret_cast<uint4*>(static_cast<char*>(base) + element * (16 / kVector<kType>));
}

// Loads kVector elements from `at` on, of which `count` exist.
template <DType kType>
__device__ inline void load_some(const void* base, std::int64_t at, std::int32_t count, bool whole,
                                 float* out) {
  if (whole) return unpack<kType>(*vectors_of<kType>(base, at), out);
#pragma unroll
  for (int i = 0; i < kVector<kType>; ++i) out[i] = i < count ? load_one<kType>(base, at + i) : 0.0F;
}
// Stores floats of a row from `at` on, of which `count` exist, or adds them if requested.
template <int kOf>
__device__ inline void put_floats(float* to, std::int32_t count, bool add, const float* x) {
#pragma unroll
  for (int i = 0; i < kOf; ++i) {
    if (i < count) to[i] = add ? to[i] + x[i] : x[i];
  }
}

// Applies dropout to `kOf` elements of a clip from `element` on.
template <int kOf>
__device__ inline void drop_some(const JointWork& w, const formula::RoundKey& key, std::uint64_t element,
                                 float* x) {
  const formula::DropoutPlace place = formula::dropout_place(element);
  const std::uint32_t second = formula::high_word(key, static_cast<std::uint32_t>(place.counter >> 32));
  const bool together = element % formula::kDropoutPair + kOf <= formula::kDropoutPair;
#pragma unroll
  for (int i = 0; i < kOf; ++i) {
    formula::DropoutPlace own{place.counter + i, place.high};
    std::uint32_t own_second = second;
    if (!together) {
      own = formula::dropout_place(element + i);
      own_second = formula::high_word(key, static_cast<std::uint32_t>(own.counter >> 32));
    }
    const scalar::I32 bits = formula::mix32(scalar::I32::of(static_cast<std::uint32_t>(own.counter)),
                                            scalar::I32::of(key.low), scalar::I32::of(own_second));
    x[i] = formula::drop(scalar::F32(x[i]), formula::dropout_half(bits, own.high),
                         scalar::I32(w.dropout.threshold), scalar::F32(w.dropout.scale))
               .v;
  }
}

template <DType kType>
__device__ inline void activate_row(const JointWork& w, const CellPlace& p, std::int64_t row) {
  constexpr int kOf = kVector<kType>;
  const int lane = threadIdx.x % 32;
  const std::int64_t f = (static_cast<std::int64_t>(p.clip) * w.lattice.frames + p.t) * w.hidden;
  const std::int64_t g = (static_cast<std::int64_t>(p.clip) * w.lattice.positions + p.u) * w.hidden;
  const auto own = static_cast<std::uint64_t>(p.t) * static_cast<std::uint64_t>(p.labels + 1) +
                   static_cast<std::uint64_t>(p.u);
  const bool drops = w.dropout.threshold > 0;
  formula::RoundKey key{};
  if (drops) key = formula::dropout_key(w.dropout_base, w.samples[p.clip], w.layer);
  for (std::int32_t k = lane * kOf; k < w.hidden_pitch; k += 32 * kOf) {
    float x[kOf], y[kOf];
    load_some<kType>(w.encoder, f + k, w.hidden - k, w.aligned, x);
    load_some<kType>(w.predictor, g + k, w.hidden - k, w.aligned, y);
#pragma unroll
    for (int i = 0; i < kOf; ++i) {
      x[i] += y[i];
      if (x[i] <= 0.0F) x[i] = 0.0F;  // NaN stays
    }
    if (drops)
      drop_some<kOf>(w, key, own * static_cast<std::uint64_t>(w.hidden) + static_cast<std::uint64_t>(k), x);
    *vectors_of<kType>(w.activations, row * w.hidden_pitch + k) = pack_fast<kType>(x);
  }
}

template <DType kType, bool kShares>
__global__ void __launch_bounds__(kThreads)
    activations_kernel(const __grid_constant__ JointWork w, const JointTile tile) {
  const int lane = threadIdx.x % 32;
  const std::int32_t row =
      static_cast<std::int32_t>(blockIdx.x) * kWarps + static_cast<std::int32_t>(threadIdx.x / 32);
  if (row >= tile.rows) return;
  float* const shares = w.shares + static_cast<std::int64_t>(row) * w.share_pitch;
  if (row >= tile.cells) {
    for (std::int32_t k = lane * kVector<kType>; k < w.hidden_pitch; k += 32 * kVector<kType>)
      *vectors_of<kType>(w.activations, static_cast<std::int64_t>(row) * w.hidden_pitch + k) =
          make_uint4(0, 0, 0, 0);
    if constexpr (kShares) {
      for (std::int32_t i = lane; i < w.share_pitch; i += 32) shares[i] = 0.0F;
    }
    return;
  }
  const std::int64_t cell = tile.first + row;
  const CellPlace p = place_of(w.lattice, cell);
  activate_row<kType>(w, p, row);
  if constexpr (kShares) {
    const float factor = clip_factor(w.lattice, p.clip, w.grad_losses);
    const CellShares s =
        shares_of(w.lattice, cell, p, factor, [&](int i, float x) { shares[kShareHead + i] = x; });
    if (lane != 0) return;
    const std::int32_t label = p.u < p.labels ? label_of(w.lattice, p.clip, p.u) : -1;
    *reinterpret_cast<float4*>(shares) =
        make_float4(__fmul_rn(w.lattice.records[cell * w.lattice.width()], kLog2e), s.all, s.blank, s.label);
    shares[4] = __int_as_float(label);
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    records_kernel(const __grid_constant__ JointWork w, const JointTile tile) {
  const std::int32_t row =
      static_cast<std::int32_t>(blockIdx.x) * kWarps + static_cast<std::int32_t>(threadIdx.x / 32);
  if (row >= tile.cells) return;
  const std::int64_t cell = tile.first + row, at = static_cast<std::int64_t>(row) * w.output_pitch;
  const char* const tokens = static_cast<const char*>(w.logits) + at * kElementBytes<kType>;
  write_record<kType>(w.lattice, cell, place_of(w.lattice, cell), tokens,
                      tokens + w.lattice.tokens * kElementBytes<kType>);
}

// Block (part, column block) processes rows part, part + kBiasParts, and so on.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(const __grid_constant__ JointWork w, const std::int32_t rows, const bool start) {
  constexpr int kOf = kVector<kType>, kTogether = 4;
  const auto v = static_cast<std::int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
  if (v >= w.output_pitch / kOf) return;
  const TransducerLattice& l = w.lattice;
  const std::int32_t column = v * kOf, blank_vector = l.blank / kOf, tail = l.tokens / kOf;
  float sums[kOf] = {};
  for (auto first = static_cast<std::int32_t>(blockIdx.x); first < rows; first += kBiasParts * kTogether) {
    uint4 words[kTogether];
    float4 head[kTogether];
    std::int32_t label[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const std::int32_t row = first + j * kBiasParts;
      if (row >= rows) continue;
      words[j] = *vectors_of<kType>(w.logits, static_cast<std::int64_t>(row) * w.output_pitch + column);
      const float* const share = w.shares + static_cast<std::int64_t>(row) * w.share_pitch;
      head[j] = *reinterpret_cast<const float4*>(share);
      label[j] = __float_as_int(share[4]);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const std::int32_t row = first + j * kBiasParts;
      if (row >= rows) continue;
      float x[kOf] = {};  // zeros, whatever the logits are, if no alignment reaches the cell
      if (const float all = head[j].y; all != 0.0F) {
        unpack<kType>(words[j], x);
#pragma unroll
        for (int i = 0; i < kOf; ++i) x[i] = __fmul_rn(exp2_fast(__fmaf_rn(x[i], kLog2e, -head[j].x)), all);
        if (v == blank_vector || v == label[j] / kOf || v >= tail) {
          const float* const share = w.shares + static_cast<std::int64_t>(row) * w.share_pitch;
#pragma unroll
          for (int i = 0; i < kOf; ++i) {
            const std::int32_t k = column + i;
            if (k == l.blank) x[i] -= head[j].z;
            if (k == label[j]) x[i] -= head[j].w;
            if (k >= l.tokens) x[i] = k < w.outputs ? share[kShareHead + k - l.tokens] : 0.0F;
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kOf; ++i) sums[i] += x[i];
      *vectors_of<kType>(w.logits, static_cast<std::int64_t>(row) * w.output_pitch + column) =
          pack_fast<kType>(x);
    }
  }
  float* const to = w.bias_sums + static_cast<std::int64_t>(blockIdx.x) * w.output_pitch + column;
#pragma unroll
  for (int i = 0; i < kOf; ++i) to[i] = start ? sums[i] : to[i] + sums[i];
}

// The rows of a tile that one block sums: `count` of them, `step` apart.
struct SumRows {
  std::int64_t first;
  std::int32_t count, step;
};

// Blocks below `frames`, which is tile.frames or 0, sum over a frame's positions; the others sum over the
// tile's frames of a clip's position.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    sums_kernel(const __grid_constant__ JointWork w, const JointTile tile, const std::int32_t frames) {
  constexpr int kOf = kVector<kType>;
  __shared__ float parts[kWarps][32][kOf + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const TransducerLattice& l = w.lattice;
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const bool is_frame = block < frames;
  SumRows rows{};
  std::int32_t clip = 0, own = 0;
  bool start = true;  // the first row of a predictor's sum
  if (is_frame) {
    const std::int32_t frame = tile.first_frame + block;
    clip = clip_before(l, frame, [](const TransducerClip& c) { return std::int64_t{c.first_frame}; });
    own = frame - l.clips[clip].first_frame;
    const std::int32_t row = l.clips[clip].labels + 1;
    rows = {l.clips[clip].first + static_cast<std::int64_t>(own) * row - tile.first, row, 1};
  } else {
    const std::int32_t position = tile.first_position + block - frames;
    clip = clip_before(l, position, [](const TransducerClip& c) { return std::int64_t{c.first_position}; });
    const TransducerClip& c = l.clips[clip];
    own = position - c.first_position;
    const std::int32_t begin = max(0, tile.first_frame - c.first_frame);
    const std::int32_t end = min(c.frames, tile.first_frame + tile.frames - c.first_frame);
    rows = {c.first + static_cast<std::int64_t>(begin) * (c.labels + 1) + own - tile.first, end - begin,
            c.labels + 1};
    start = begin == 0;
  }
  const std::int32_t k = (static_cast<std::int32_t>(blockIdx.y) * 32 + lane) * kOf;
  float sum[kOf] = {};
  if (k < w.hidden_pitch) {
#pragma unroll 4
    for (std::int32_t i = warp; i < rows.count; i += kWarps) {
      const std::int64_t at = (rows.first + static_cast<std::int64_t>(i) * rows.step) * w.hidden_pitch + k;
      float x[kOf], g[kOf];
      unpack<kType>(*vectors_of<kType>(w.activations, at), x);
      unpack<kType>(*vectors_of<kType>(w.activations_grad, at), g);
#pragma unroll
      for (int e = 0; e < kOf; ++e) sum[e] += x[e] == 0.0F ? 0.0F : g[e];  // zero from relu or from dropout
    }
  }
#pragma unroll
  for (int e = 0; e < kOf; ++e) parts[warp][lane][e] = sum[e];
  __syncthreads();
  if (warp != 0 || k >= w.hidden_pitch) return;
#pragma unroll
  for (int e = 0; e < kOf; ++e) {
    for (int i = 1; i < kWarps; ++i) sum[e] += parts[i][lane][e];
    sum[e] = __fmul_rn(sum[e], w.dropout.scale);
  }
  const std::int64_t row = static_cast<std::int64_t>(clip) * (is_frame ? l.frames : l.positions) + own;
  put_floats<kOf>((is_frame ? w.grads.encoder : w.grads.predictor) + row * w.hidden + k, w.hidden - k, !start,
                  sum);
}

__device__ inline std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) pad_kernel(const __grid_constant__ JointWork w) {
  const std::int64_t at = thread_number(), row = at / w.hidden_pitch, k = at % w.hidden_pitch;
  if (row >= w.output_pitch) return;
  const bool real = row < w.outputs && k < w.hidden;
  store_one<kType>(w.padded_weight, at, real ? load_one<kType>(w.weight, row * w.hidden + k) : 0.0F);
  if (k != 0) return;
  const bool biased = w.bias != nullptr && row < w.outputs;
  store_one<kType>(w.padded_bias, row,
                   biased ? load_one(w.bias, static_cast<std::uint8_t>(w.bias_dtype), row) : 0.0F);
}

// Writes elements of the weight's gradient, then of the bias's, and the padding of the predictor's and the
// encoder's.
__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ JointWork w) {
  std::int64_t at = thread_number();
  const std::int64_t weights = static_cast<std::int64_t>(w.outputs) * w.hidden;
  if (at < weights) {
    const std::int64_t row = at / w.hidden;
    if (w.grads.weight != nullptr)
      w.grads.weight[at] = w.weight_sums[row * w.hidden_pitch + (at - row * w.hidden)];
    return;
  }
  at -= weights;
  if (at < w.outputs) {
    if (w.grads.bias == nullptr) return;
    float sum = 0.0F;
    for (std::int32_t i = 0; i < kBiasParts; ++i)
      sum += w.bias_sums[static_cast<std::int64_t>(i) * w.output_pitch + at];
    w.grads.bias[at] = sum;
    return;
  }
  at -= w.outputs;
  const auto pad = [&](float* grad, std::int32_t rows, auto real) {
    const std::int64_t row = at / w.hidden, clip = row / rows;
    if (grad != nullptr && clip < w.lattice.batch && row - clip * rows >= real(w.lattice.clips[clip]))
      grad[at] = 0.0F;
  };
  const std::int64_t predictors = static_cast<std::int64_t>(w.lattice.batch) * w.lattice.positions * w.hidden;
  if (at < predictors)
    return pad(w.grads.predictor, w.lattice.positions, [](const TransducerClip& c) { return c.labels + 1; });
  at -= predictors;
  pad(w.grads.encoder, w.lattice.frames, [](const TransducerClip& c) { return c.frames; });
}

unsigned blocks_for(std::int64_t count, std::int64_t of) {
  return static_cast<unsigned>((count + of - 1) / of);
}

}  // namespace

cudaError_t joint_pad(const JointWork& w, cudaStream_t stream) {
  const std::int64_t count = static_cast<std::int64_t>(w.output_pitch) * w.hidden_pitch;
  return by_type(w.dtype, [&](auto type) {
    pad_kernel<type()><<<blocks_for(count, kThreads), kThreads, 0, stream>>>(w);
  });
}

cudaError_t joint_activations(const JointWork& w, const JointTile& tile, bool shares, cudaStream_t stream) {
  const unsigned blocks = blocks_for(tile.rows, kWarps);
  return by_type(w.dtype, [&](auto type) {
    if (shares)
      activations_kernel<type(), true><<<blocks, kThreads, 0, stream>>>(w, tile);
    else
      activations_kernel<type(), false><<<blocks, kThreads, 0, stream>>>(w, tile);
  });
}

cudaError_t joint_records(const JointWork& w, const JointTile& tile, cudaStream_t stream) {
  const unsigned blocks = blocks_for(tile.cells, kWarps);
  return by_type(w.dtype,
                 [&](auto type) { records_kernel<type()><<<blocks, kThreads, 0, stream>>>(w, tile); });
}

cudaError_t joint_gradients(const JointWork& w, const JointTile& tile, bool start, cudaStream_t stream) {
  return by_type(w.dtype, [&](auto type) {
    const std::int32_t vectors = w.output_pitch / kVector<type()>;
    const unsigned across = blocks_for(vectors, kThreads);
    const unsigned threads = blocks_for(blocks_for(vectors, across), 32) * 32;
    gradients_kernel<type()><<<dim3(kBiasParts, across), threads, 0, stream>>>(w, tile.rows, start);
  });
}

cudaError_t joint_sums(const JointWork& w, const JointTile& tile, cudaStream_t stream) {
  const std::int32_t frames = w.grads.encoder != nullptr ? tile.frames : 0;
  const std::int32_t positions = w.grads.predictor != nullptr ? tile.positions : 0;
  return by_type(w.dtype, [&](auto type) {
    const dim3 blocks(static_cast<unsigned>(frames + positions),
                      blocks_for(w.hidden_pitch, 32 * kVector<type()>));
    sums_kernel<type()><<<blocks, kThreads, 0, stream>>>(w, tile, frames);
  });
}

cudaError_t joint_finish(const JointWork& w, cudaStream_t stream) {
  const TransducerLattice& l = w.lattice;
  const std::int64_t count = static_cast<std::int64_t>(w.outputs) * (w.hidden + 1) +
                             static_cast<std::int64_t>(l.batch) * (l.positions + l.frames) * w.hidden;
  finish_kernel<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(w);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
