// Log-mel features of recordings, in fp32 whatever autocast would choose, with zeros beyond a clip's end.
//
//   1. x = audio + dither; then x[n] - preemphasis * x[n - 1]; then zeros from the clip's end on.
//   2. Frame t is x, centered on sample t * hop, times the window. The frame's power spectrum times the
//      filters is the frame's bands.
//   3. ln(band + guard), minus its mean, divided by (its standard deviation + 1e-5), per clip and band.
//
// Mean and standard deviation are over the clip's own frames, so a clip has the same features in any batch.
// The features have no gradient.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"

#include <torch/types.h>

#include <cstdint>

namespace octavo_train {

// The tables are in fp32, on the audio's device.
struct MelTables {
  torch::Tensor window;   // [n_fft]
  torch::Tensor filters;  // [bands, n_fft / 2 + 1]
  // The filters without their zeros, for the kernels: packed[k, b] is the weight of band b for the bin
  // starts[b] + k.
  torch::Tensor packed;  // [width, bands]
  torch::Tensor starts;  // [bands], int32
};
// REQUIRES: fp32 on the CPU.
MelTables make_mel_tables(const torch::Tensor& window, const torch::Tensor& filters,
                          const torch::Device& device);

struct MelOptions {
  std::int64_t hop = 0;
  double preemphasis = 0, guard = 0;
  double dither = 0;  // standard deviation of the noise; 0: `pass` is not read
};

// Returns the features [batch, T, bands] of audio [batch, samples] in fp32, where T is `frames`, the number
// of frames of the longest clip. `lengths` are in samples, int64 [batch] on the audio's device; a clip of n
// samples has n / hop frames. The dither noise depends on `pass` as dropout does, and on the sample's
// position in its clip.
torch::Tensor mel_features(const torch::Tensor& audio, const torch::Tensor& lengths, std::int64_t frames,
                           const MelTables& tables, const MelOptions& options, const DropoutKey& pass = {});

}  // namespace octavo_train
