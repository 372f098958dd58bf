// SPDX-License-Identifier: MIT
#include "train/tasks/speech/features/spec_augment.h"

#include "train/data/mix.h"

#include <algorithm>

namespace octavo_train {
namespace {

// Separates these random numbers from others with the same seed.
constexpr std::uint64_t kAugment = 0x5370656341756721;

// The sequence of random numbers r, r', r'', …, each from 0 to below 1.
class Shares {
 public:
  explicit Shares(const MaskKey& key)
      : key_(mix(mix(mix((key.seed ^ kAugment) + kGoldenGamma) + key.step) + key.draw)) {}
  double next() { return share_of(key_, ++count_); }

 private:
  std::uint64_t key_, count_ = 0;
};

// Draws `count` masks. The length of each mask is below `width`.
std::vector<MaskSpan> draw_spans(std::int64_t count, double width, std::int64_t length, Shares& shares) {
  std::vector<MaskSpan> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto taken = static_cast<std::int64_t>(shares.next() * width);
    const auto start = static_cast<std::int64_t>(shares.next() * static_cast<double>(length - taken));
    out.push_back({start, start + taken});
  }
  return out;
}

}  // namespace

Masks draw_masks(const SpecAugmentSettings& settings, std::int64_t frames, std::int64_t bands,
                 const MaskKey& key) {
  const auto length = static_cast<double>(frames), all = static_cast<double>(bands);
  const double asked = settings.time_width <= 1 ? settings.time_width * length : settings.time_width;
  Shares shares(key);
  Masks out;
  out.time = draw_spans(settings.time_masks, std::min(asked, length), frames, shares);
  out.frequency =
      draw_spans(settings.freq_masks, std::min(static_cast<double>(settings.freq_width), all), bands, shares);
  return out;
}

}  // namespace octavo_train
