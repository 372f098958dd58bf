// Lattices on a GPU. Every arc leads to a larger t + u, so cells of equal t + u are one step of a block,
// which ends with a barrier. One block walks a clip's alphas and another one its betas, from the other end.
// Threads stride over u, so U has no limit. Sums of exponentials are max + log(sum of exp(x - max)):
// differences are in double, exponentials in fp32, so that an error does not grow with |log P|.
//
// The values of former steps that arcs need are in a ring in shared memory if a ring of `lattice.ring` steps
// fits, otherwise in the arrays in memory.
// SPDX-License-Identifier: MIT
#include "transducer/cuda/cells.cuh"

#include <algorithm>

namespace octavo::cuda {
namespace {

constexpr int kWalkers = 1024;
constexpr int kClipsAtOnce = 120;
constexpr int kFewDurations = 8;

struct ClipParameters {
  TransducerClip clips[kClipsAtOnce];
};

__global__ void clips_kernel(const __grid_constant__ ClipParameters from, std::int32_t count,
                             TransducerClip* to, TransducerHead head, TransducerHead* head_to) {
  if (static_cast<std::int32_t>(threadIdx.x) < count) to[threadIdx.x] = from.clips[threadIdx.x];
  if (threadIdx.x == 0 && head_to != nullptr) *head_to = head;
}

// Runs in one block, which also counts the labels of all clips.
__global__ void __launch_bounds__(256)
    lengths_kernel(const __grid_constant__ TransducerLattice l, const std::int64_t* frames,
                   const std::int64_t* labels, const bool start) {
  __shared__ std::int64_t parts[256];
  std::int64_t count = 0;
  for (auto b = static_cast<std::int32_t>(threadIdx.x); b < l.batch; b += 256) {
    const std::int64_t t = frames[b], u = labels[b];
    const bool good = t >= 1 && t <= l.frames && u >= 0 && u < l.positions;
    const std::int64_t first = static_cast<std::int64_t>(b) * l.frames * l.positions;
    l.clips[b] = {first, 0, 0, good ? static_cast<std::int32_t>(t) : 0,
                  good ? static_cast<std::int32_t>(u) : 0};
    count += good ? u : 0;
  }
  parts[threadIdx.x] = count;
  for (unsigned half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0 && start) *l.head = {l.key, parts[0]};
}

// Returns the log of a sum of exponentials, of up to 2 * kMost terms.
template <int kMost>
struct LogSum {
  double terms[2 * kMost];
  float most = kMinusInf;
  bool nan = false;

  __device__ void put(int i, double x) {
    terms[i] = x;
    nan = nan || x != x;
    most = fmaxf(most, static_cast<float>(x));
  }
  [[nodiscard]] __device__ double value(int arcs) const {
    if (nan) return kNotANumber;
    if (most == kMinusInf) return kNever;
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 2 * kMost; ++i) {
      if (i < 2 * arcs) sum += exp2_fast(static_cast<float>(terms[i] - static_cast<double>(most)) * kLog2e);
    }
    return static_cast<double>(most) + static_cast<double>(logf(sum));
  }
};

// alpha + B and alpha + Y of former cells and their Q, or betas of later ones, by step and u.
struct Ring {
  double* memory;
  std::int32_t steps, positions;

  [[nodiscard]] __device__ std::int32_t at(std::int32_t slot, std::int32_t back, std::int32_t u) const {
    const std::int32_t own = slot - back;
    return (own < 0 ? own + steps : own) * positions + u;
  }
  [[nodiscard]] __device__ double* first() const { return memory; }
  [[nodiscard]] __device__ double* second() const { return memory + steps * positions; }
  [[nodiscard]] __device__ float* scores(int i) const {
    return reinterpret_cast<float*>(memory + 2 * steps * positions) + i * steps * positions;
  }
};

template <int kMost, bool kShared>
__device__ void walk_alphas(const TransducerLattice& l, const TransducerClip& c, double* memory) {
  const std::int32_t row = c.labels + 1, arcs = l.durations > 0 ? l.durations : 1;
  const bool rnnt = l.durations == 0;
  const Ring ring{memory, l.ring, row};
  const float* const records = l.records + c.first * l.width();
  double* const alphas = l.alpha + c.first;
  for (std::int32_t step = 0, slot = 0; step < c.frames + c.labels;
       ++step, slot = slot + 1 == l.ring ? 0 : slot + 1) {
    const std::int32_t low = max(0, step - c.frames + 1), high = min(step, c.labels);
    for (std::int32_t u = static_cast<std::int32_t>(threadIdx.x); u <= high;
         u += static_cast<std::int32_t>(blockDim.x)) {
      if (u < low) continue;
      const std::int32_t t = step - u;
      const std::int64_t cell = static_cast<std::int64_t>(t) * row + u;
      const float* const r = records + cell * l.width();
      float mine[2 + kMost];  // requested before the wait below
      if constexpr (kShared) {
        mine[0] = r[1];
        mine[1] = r[2];
#pragma unroll
        for (int i = 0; i < kMost; ++i) mine[2 + i] = i < l.durations ? r[3 + i] : 0.0F;
      }
      LogSum<kMost> sum;
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        if (i >= arcs) break;
        const std::int32_t by_blank = rnnt ? 1 : l.advance[i], by_label = rnnt ? 0 : l.advance[i];
        double blank = kNever, label = kNever;
        if (by_blank >= 1 && t >= by_blank) {
          if constexpr (kShared) {
            const std::int32_t at = ring.at(slot, by_blank, u);
            blank = ring.first()[at] + static_cast<double>(rnnt ? 0.0F : ring.scores(i)[at]);
          } else {
            const std::int64_t from = cell - static_cast<std::int64_t>(by_blank) * row;
            const float* const q = records + from * l.width();
            const double alpha = alphas[from];
            if (alpha != kNever)
              blank = alpha + static_cast<double>(q[1]) + static_cast<double>(rnnt ? 0.0F : q[3 + i]);
          }
        }
        if (u >= 1 && t >= by_label) {
          if constexpr (kShared) {
            const std::int32_t at = ring.at(slot, by_label + 1, u - 1);
            label = ring.second()[at] + static_cast<double>(rnnt ? 0.0F : ring.scores(i)[at]);
          } else {
            const std::int64_t from = cell - static_cast<std::int64_t>(by_label) * row - 1;
            const float* const q = records + from * l.width();
            const double alpha = alphas[from];
            if (alpha != kNever)
              label = alpha + static_cast<double>(q[2]) + static_cast<double>(rnnt ? 0.0F : q[3 + i]);
          }
        }
        sum.put(2 * i, blank);
        sum.put(2 * i + 1, label);
      }
      const double alpha = step == 0 ? 0.0 : sum.value(arcs);
      alphas[cell] = alpha;
      if constexpr (kShared) {
        const std::int32_t at = ring.at(slot, 0, u);
        const bool never = alpha == kNever;  // then no arc leaves, whatever the scores are
        ring.first()[at] = never ? kNever : alpha + static_cast<double>(mine[0]);
        ring.second()[at] = never ? kNever : alpha + static_cast<double>(mine[1]);
#pragma unroll
        for (int i = 0; i < kMost; ++i) {
          if (i < l.durations) ring.scores(i)[at] = never ? 0.0F : mine[2 + i];
        }
      }
    }
    __syncthreads();
  }
}

template <int kMost, bool kShared>
__device__ void walk_betas(const TransducerLattice& l, const TransducerClip& c, std::int32_t clip,
                           double* memory) {
  const std::int32_t row = c.labels + 1, arcs = l.durations > 0 ? l.durations : 1;
  const bool rnnt = l.durations == 0;
  const Ring ring{memory, l.ring, row};
  const float* const records = l.records + c.first * l.width();
  double* const betas = l.beta + c.first;
  for (std::int32_t back = 0, slot = 0; back < c.frames + c.labels;
       ++back, slot = slot + 1 == l.ring ? 0 : slot + 1) {
    const std::int32_t step = c.frames + c.labels - 1 - back;
    const std::int32_t low = max(0, step - c.frames + 1), high = min(step, c.labels);
    for (std::int32_t u = static_cast<std::int32_t>(threadIdx.x); u <= high;
         u += static_cast<std::int32_t>(blockDim.x)) {
      if (u < low) continue;
      const std::int32_t t = step - u, left = c.frames - t;
      const std::int64_t cell = static_cast<std::int64_t>(t) * row + u;
      const float* const r = records + cell * l.width();
      const double blank_score = static_cast<double>(r[1]), label_score = static_cast<double>(r[2]);
      LogSum<kMost> sum;
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        if (i >= arcs) break;
        const std::int32_t by_blank = rnnt ? 1 : l.advance[i], by_label = rnnt ? 0 : l.advance[i];
        const double q = static_cast<double>(rnnt ? 0.0F : r[3 + i]);
        const auto beta = [&](std::int32_t by, std::int32_t more) {
          if constexpr (kShared) return ring.first()[ring.at(slot, by + more, u + more)];
          return betas[cell + static_cast<std::int64_t>(by) * row + more];
        };
        const auto arc = [&](double score, double after) {
          return after == kNever || score == kNever ? kNever : score + after;
        };
        double blank = kNever, label = kNever;
        if (by_blank >= 1 && by_blank < left) blank = arc(blank_score + q, beta(by_blank, 0));
        if (by_blank >= 1 && by_blank == left && u == c.labels) blank = blank_score + q;
        if (u < c.labels && by_label < left) label = arc(label_score + q, beta(by_label, 1));
        sum.put(2 * i, blank);
        sum.put(2 * i + 1, label);
      }
      const double value = sum.value(arcs);
      betas[cell] = value;
      if (cell == 0) l.log_p[clip] = value;
      if constexpr (kShared) ring.first()[ring.at(slot, 0, u)] = value;
    }
    __syncthreads();
  }
}

template <int kMost, bool kShared>
__global__ void __launch_bounds__(kWalkers) walk_kernel(const __grid_constant__ TransducerLattice l) {
  extern __shared__ double ring_memory[];
  const auto clip = static_cast<std::int32_t>(blockIdx.x / 2);
  const TransducerClip c = l.clips[clip];
  if (c.frames == 0 && threadIdx.x == 0) l.log_p[clip] = kNotANumber;
  if (blockIdx.x % 2 == 0) {
    walk_alphas<kMost, kShared>(l, c, ring_memory);
  } else {
    walk_betas<kMost, kShared>(l, c, clip, ring_memory);
  }
}

// Runs in one block; the sum uses a fixed tree.
__global__ void __launch_bounds__(256)
    losses_kernel(const __grid_constant__ TransducerLattice l, float* losses) {
  __shared__ double parts[256];
  double sum = 0.0;
  for (auto b = static_cast<std::int32_t>(threadIdx.x); b < l.batch; b += 256) {
    const double loss = -l.log_p[b];
    if (l.reduction == TransducerReduction::none) losses[b] = static_cast<float>(loss);
    sum += loss / clip_divisor(l, b);
  }
  parts[threadIdx.x] = sum;
  for (unsigned half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0 && l.reduction != TransducerReduction::none) *losses = static_cast<float>(parts[0]);
}

template <int kMost>
cudaError_t walk(const TransducerLattice& l, std::int32_t positions, cudaStream_t stream) {
  const std::int64_t ring = std::int64_t{l.ring} * positions * (16 + 4 * l.durations);
  int device = 0, room = 0;
  if (const cudaError_t bad = cudaGetDevice(&device); bad != cudaSuccess) return bad;
  if (const cudaError_t bad = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
      bad != cudaSuccess) {
    return bad;
  }
  const auto blocks = static_cast<unsigned>(2 * l.batch);
  const auto threads = static_cast<unsigned>(std::min(kWalkers, (positions + 31) / 32 * 32));
  if (ring > room) {
    walk_kernel<kMost, false><<<blocks, threads, 0, stream>>>(l);
    return cudaGetLastError();
  }
  const auto bytes = static_cast<int>(ring);
  if (const cudaError_t bad =
          cudaFuncSetAttribute(walk_kernel<kMost, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      bad != cudaSuccess) {
    return bad;
  }
  walk_kernel<kMost, true><<<blocks, threads, static_cast<std::size_t>(bytes), stream>>>(l);
  return cudaGetLastError();
}

}  // namespace

cudaError_t put_clips(const TransducerLattice& l, const TransducerClip* clips, std::int64_t labels,
                      bool start, cudaStream_t stream) {
  for (std::int32_t done = 0; done < l.batch; done += kClipsAtOnce) {
    ClipParameters some{};
    const std::int32_t now = std::min(kClipsAtOnce, l.batch - done);
    std::copy_n(clips + done, now, some.clips);
    TransducerHead* const head = start && done == 0 ? l.head : nullptr;
    clips_kernel<<<1, 128, 0, stream>>>(some, now, l.clips + done, {l.key, labels}, head);
    if (const cudaError_t bad = cudaGetLastError(); bad != cudaSuccess) return bad;
  }
  return cudaSuccess;
}

cudaError_t find_clips(const TransducerLattice& l, const std::int64_t* frames, const std::int64_t* labels,
                       bool start, cudaStream_t stream) {
  lengths_kernel<<<1, 256, 0, stream>>>(l, frames, labels, start);
  return cudaGetLastError();
}

cudaError_t walk_lattices(const TransducerLattice& l, std::int32_t positions, cudaStream_t stream) {
  return l.durations <= kFewDurations ? walk<kFewDurations>(l, positions, stream)
                                      : walk<kMaxTransducerDurations>(l, positions, stream);
}

cudaError_t put_losses(const TransducerLattice& lattice, float* losses, cudaStream_t stream) {
  losses_kernel<<<1, 256, 0, stream>>>(lattice, losses);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
