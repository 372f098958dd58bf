// Log-mel features of recordings, in fp32 whatever autocast would choose, with zeros beyond a clip's end.
//
//   x = audio + dither, then x[n] - preemphasis * x[n - 1], then zeros from the clip's end on
//   frame t is x around sample t * hop times the window; its power spectrum times the filters makes bands
//   ln(band + guard), then per clip and band minus the mean, by the deviation + 1e-5
//
// Deviation and mean are of the clip's own frames: a clip has the same features in any batch. Nothing here
// has a gradient.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"

#include <torch/types.h>

#include <cstdint>

namespace octavo::train {

// In fp32, where the audio is.
struct MelTables {
  torch::Tensor window;   // [n_fft]
  torch::Tensor filters;  // [bands, n_fft / 2 + 1]
  // The same without what is zero, for the kernels: of band b, packed[k, b] belong to the bins from starts[b]
  // on.
  torch::Tensor packed;  // [width, bands]
  torch::Tensor starts;  // [bands], int32
};
// REQUIRES: fp32 on the CPU.
MelTables make_mel_tables(const torch::Tensor& window, const torch::Tensor& filters,
                          const torch::Device& device);

struct MelOptions {
  std::int64_t hop = 0;
  double preemphasis = 0, guard = 0;
  double dither = 0;  // deviation of the noise; 0: the pass is not looked at
};

// [batch, T, bands] of audio [batch, samples] in fp32, where T frames are those of the longest clip.
// `lengths` are in samples, int64 [batch] on the audio's device; a clip of n samples has n / hop frames. The
// noise of the dither depends on the pass as dropout does, and on the sample's place in its clip.
torch::Tensor mel_features(const torch::Tensor& audio, const torch::Tensor& lengths, std::int64_t frames,
                           const MelTables& tables, const MelOptions& options, const DropoutPass& pass = {});

}  // namespace octavo::train
