// The kernels of the loss on logits. A warp processes one row of outputs, whatever its alignment.
// SPDX-License-Identifier: MIT
#include "transducer/cuda/logits.h"

#include "transducer/cuda/rows.cuh"

namespace octavo::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

std::int64_t rows_of(const TransducerLattice& l) { return std::int64_t{l.batch} * l.frames * l.positions; }

// A view for kernels, because member functions of std::array do not run on a device.
struct Rows {
  char* data;
  std::int64_t clip, frame, position;  // in bytes

  Rows() = default;
  template <class Void>
  Rows(const TransducerView<Void>& view, std::int64_t each)
      : data(static_cast<char*>(const_cast<void*>(static_cast<const void*>(view.data)))),
        clip(view.strides[0] * each),
        frame(view.strides[1] * each),
        position(view.strides[2] * each) {}
  [[nodiscard]] __device__ char* at(const CellPlace& p) const {
    return data + p.clip * clip + p.t * frame + p.u * position;
  }
};

struct Work {
  TransducerLattice lattice;
  Rows tokens, durations, token_grad, duration_grad;
  const float* grad_losses;

  explicit Work(const LogitsWork& w)
      : lattice(w.lattice),
        tokens(w.tokens, dtype_bytes(w.dtype)),
        durations(w.durations, dtype_bytes(w.dtype)),
        token_grad(w.token_grad, dtype_bytes(w.dtype)),
        duration_grad(w.duration_grad, dtype_bytes(w.dtype)),
        grad_losses(w.grad_losses) {}
};

// Returns the place of this warp's row among those of the padded sizes. The clip number `batch` is after the
// last.
__device__ inline CellPlace padded_place(const TransducerLattice& l) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const std::int64_t frame = row / l.positions;
  const auto clip = static_cast<std::int32_t>(frame / l.frames);
  CellPlace p{clip, static_cast<std::int32_t>(frame - static_cast<std::int64_t>(clip) * l.frames),
              static_cast<std::int32_t>(row - frame * l.positions), 0, 0};
  if (clip < l.batch) {
    p.frames = l.clips[clip].frames;
    p.labels = l.clips[clip].labels;
  }
  return p;
}
__device__ inline bool has_cell(const CellPlace& p) { return p.t < p.frames && p.u <= p.labels; }
__device__ inline std::int64_t cell_of(const TransducerLattice& l, const CellPlace& p) {
  return l.clips[p.clip].first + static_cast<std::int64_t>(p.t) * (p.labels + 1) + p.u;
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) records_kernel(const __grid_constant__ Work w) {
  const CellPlace p = padded_place(w.lattice);
  if (p.clip >= w.lattice.batch || !has_cell(p)) return;
  write_record<kType>(w.lattice, cell_of(w.lattice, p), p, w.tokens.at(p), w.durations.at(p));
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) gradients_kernel(const __grid_constant__ Work w) {
  const TransducerLattice& l = w.lattice;
  const CellPlace p = padded_place(l);
  if (p.clip >= l.batch) return;
  char* const tokens = w.token_grad.at(p);
  char* const durations = w.duration_grad.at(p);
  if (!has_cell(p)) {  // all gradients of a clip with wrong lengths are NaN
    const float value = p.frames == 0 ? static_cast<float>(kNotANumber) : 0.0F;
    fill_row<kType>(tokens, l.tokens, value);
    fill_row<kType>(durations, l.extra, value);
    return;
  }
  const std::int64_t cell = cell_of(l, p);
  const CellShares s = shares_of(l, cell, p, clip_factor(l, p.clip, w.grad_losses),
                                 [&](int i, float x) { store_one<kType>(durations, i, x); });
  if (s.all == 0.0F) return fill_row<kType>(tokens, l.tokens, 0.0F);  // whatever the logits are
  const float norm = __fmul_rn(l.records[cell * l.width()], kLog2e);
  const std::int32_t label = p.u < p.labels ? label_of(l, p.clip, p.u) : -1;
  map_row<kType>(w.tokens.at(p), tokens, l.tokens, [&](std::int32_t first, float* x, auto of) {
    constexpr int kOf = of();
#pragma unroll
    for (int i = 0; i < kOf; ++i) x[i] = __fmul_rn(exp2_fast(__fmaf_rn(x[i], kLog2e, -norm)), s.all);
    const auto near = [&](std::int32_t k) { return static_cast<std::uint32_t>(k - first) < kOf; };
    if (near(l.blank) || near(label)) {
#pragma unroll
      for (int i = 0; i < kOf; ++i) {
        if (first + i == l.blank) x[i] -= s.blank;
        if (first + i == label) x[i] -= s.label;
      }
    }
  });
}

unsigned blocks_of(const TransducerLattice& l) {
  return static_cast<unsigned>((rows_of(l) + kWarps - 1) / kWarps);
}

}  // namespace

cudaError_t logits_records(const LogitsWork& work, cudaStream_t stream) {
  return by_type(work.dtype, [&](auto type) {
    records_kernel<type()><<<blocks_of(work.lattice), kThreads, 0, stream>>>(Work(work));
  });
}

cudaError_t logits_gradients(const LogitsWork& work, cudaStream_t stream) {
  return by_type(work.dtype, [&](auto type) {
    gradients_kernel<type()><<<blocks_of(work.lattice), kThreads, 0, stream>>>(Work(work));
  });
}

}  // namespace octavo::cuda
