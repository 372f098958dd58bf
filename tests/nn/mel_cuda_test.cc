// Tests the feature kernels against the plain composition on the CPU: with and without dither, with clips of
// any length, and with FFT sizes that are not powers of two. Repeated runs give the same bits, and a clip's
// features do not depend on its batch.
// SPDX-License-Identifier: MIT
#include "tests/nn/gpu.h"
#include "train/nn/mel.h"

#include <algorithm>

namespace octavo_train {
namespace {

using torch::Tensor;

class MelCuda : public NnGpuTest {};

struct Case {
  std::int64_t size, window, hop, bands, samples;
  std::vector<std::int64_t> lengths;
  double dither;
};

// Returns triangles of equal width, some of which may cover only one bin.
Tensor filters_of(const Case& c) {
  const std::int64_t bins = c.size / 2 + 1;
  const Tensor at = torch::arange(bins, torch::kFloat32).unsqueeze(0);
  const Tensor middle = torch::linspace(1, static_cast<double>(bins - 2), c.bands).unsqueeze(1);
  const double width = 1.2 * static_cast<double>(bins) / static_cast<double>(c.bands) + 1;
  return (1 - (at - middle).abs() / width).clamp_min(0);
}

Tensor window_of(const Case& c) {
  const std::int64_t left = (c.size - c.window) / 2;
  return torch::constant_pad_nd(torch::hann_window(c.window, false), {left, c.size - c.window - left});
}

Tensor features(const Case& c, const Tensor& audio, const std::vector<std::int64_t>& lengths,
                const std::vector<std::int64_t>& draws, const torch::Device& device) {
  const MelOptions options{c.hop, 0.97, 0x1p-24, c.dither};
  std::int64_t frames = 1;
  for (const std::int64_t each : lengths) frames = std::max(frames, each / c.hop);
  return mel_features(audio.to(device), torch::tensor(lengths, torch::kInt64).to(device), frames,
                      make_mel_tables(window_of(c), filters_of(c), device), options,
                      {11, 5, torch::tensor(draws, torch::kInt64).to(device)});
}

TEST_F(MelCuda, AreThoseOfTheComposition) {
  const Case cases[] = {{512, 400, 160, 128, 9000, {9000, 4321, 161}, 1e-5},
                        {512, 400, 160, 128, 9000, {8999, 9000, 5000}, 0},
                        {512, 512, 64, 80, 3000, {3000, 700, 2999}, 1e-3},
                        {200, 150, 37, 17, 2000, {2000, 37, 1234}, 1e-4},
                        {4096, 3000, 2000, 40, 70000, {70000, 2000, 41234}, 1e-5},
                        {512, 400, 160, 3, 160, {160, 160, 160}, 1e-5}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.size);
    Tensor audio = 0.1 * torch::randn({3, c.samples});
    audio.narrow(1, 0, c.samples / 3).zero_();
    const Tensor wanted = features(c, audio, c.lengths, {3, 8, 1}, torch::kCPU);
    const Tensor found = features(c, audio, c.lengths, {3, 8, 1}, torch::kCUDA);
    ASSERT_EQ(found.sizes(), wanted.sizes());
    EXPECT_LT((found.cpu() - wanted).abs().max().item<double>(), 1e-4);
    EXPECT_TRUE(found.equal(features(c, audio, c.lengths, {3, 8, 1}, torch::kCUDA)));
    // The last clip is computed alone, with different samples after its end.
    const std::int64_t length = c.lengths[2], frames = length / c.hop;
    Tensor alone = torch::cat({audio[2].narrow(0, 0, length), torch::ones({100})}).unsqueeze(0);
    const Tensor one = features(c, alone, {length}, {1}, torch::kCUDA);
    EXPECT_LT((one[0] - found[2].narrow(0, 0, frames)).abs().max().item<double>(), 1e-6);
    EXPECT_EQ(found[2].narrow(0, frames, found.size(1) - frames).count_nonzero().item<std::int64_t>(), 0);
  }
}

}  // namespace
}  // namespace octavo_train
