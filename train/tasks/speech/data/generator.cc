// SPDX-License-Identifier: MIT
#include "train/tasks/speech/data/generator.h"

#include "train/data/mix.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace octavo_train {
namespace {

constexpr std::string_view kConsonants = "bdfghjklmnprstvz", kVowels = "aeiou";
constexpr std::int64_t kSyllables = static_cast<std::int64_t>(kConsonants.size() * kVowels.size());
constexpr std::int64_t kFormants = 3;
// The streams of random numbers of a clip.
constexpr std::uint64_t kLength = 1, kTokens = 2, kTiming = 3, kNoise = 4;

// Returns number `at` of a stream, from 0 to below 1.
double share(std::uint64_t key, std::uint64_t at) { return share_of(key, at + 1); }

std::uint64_t stream(std::uint64_t key, std::uint64_t name) { return mix(key + name * kGoldenGamma); }

// Returns an approximately normal number of variance 1, as the sum of four 16-bit numbers. The function
// avoids the C math library, whose results differ between machines in the last bit.
float bell(std::uint64_t bits) {
  const auto part = [bits](int shift) { return static_cast<std::int32_t>((bits >> shift) & 0xFFFF); };
  const std::int32_t sum = part(0) + part(16) + part(32) + part(48) - 2 * 0xFFFF;
  return static_cast<float>(sum) * (1.7320508F / 65536.0F);
}

// Computes the level of a token in each band: three parabolic bumps, positive or negative.
void pattern(std::int64_t token, std::span<float> bands) {
  const std::uint64_t key = stream(static_cast<std::uint64_t>(token), kTokens);
  const auto count = static_cast<double>(bands.size());
  const double half = std::max(1.0, count / 10);
  std::ranges::fill(bands, 0.0F);
  for (std::uint64_t i = 0; i < kFormants; ++i) {
    const double centre = share(key, 2 * i) * count;
    const double sign = share(key, 2 * i + 1) < 0.3 ? -1 : 1;
    for (std::size_t band = 0; band < bands.size(); ++band) {
      const double off = (static_cast<double>(band) + 0.5 - centre) / half;
      if (off > -1 && off < 1) bands[band] += static_cast<float>(sign * 2 * (1 - off * off));
    }
  }
}

}  // namespace

ClipSpec plan_clip(const GeneratorSettings& settings, std::int64_t vocabulary, std::uint64_t number,
                   bool longest) {
  ClipSpec out;
  out.key = mix(mix(static_cast<std::uint64_t>(settings.seed) + kGoldenGamma) + number);
  const std::int64_t most = clip_frames(settings);
  const double less = longest ? 0 : settings.vary * share(stream(out.key, kLength), 0);
  out.frames = std::max<std::int64_t>(kShortestToken,
                                      most - static_cast<std::int64_t>(less * static_cast<double>(most)));
  const std::int64_t tokens = std::max<std::int64_t>(1, settings.tokens * out.frames / most);
  const std::uint64_t key = stream(out.key, kTokens);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const double at = share(key, static_cast<std::uint64_t>(i)) * static_cast<double>(vocabulary);
    out.tokens.push_back(std::min(vocabulary - 1, static_cast<std::int64_t>(at)));
  }
  return out;
}

void make_features(const GeneratorSettings& settings, const ClipSpec& plan, std::int64_t bands,
                   std::span<float> features) {
  const auto width = static_cast<std::size_t>(bands);
  const std::uint64_t noise = stream(plan.key, kNoise), timing = stream(plan.key, kTiming);
  const auto loud = static_cast<float>(settings.noise);
  for (std::size_t i = 0; i < features.size(); ++i)
    features[i] = loud * bell(mix(noise + (i + 1) * kGoldenGamma));
  std::vector<float> voice(width);
  const auto count = static_cast<std::int64_t>(plan.tokens.size());
  for (std::int64_t i = 0; i < count; ++i) {
    pattern(plan.tokens[static_cast<std::size_t>(i)], voice);
    // A token begins in the first quarter of its share of the clip and lasts until the end of the share.
    const std::int64_t end = (i + 1) * plan.frames / count, all = end - i * plan.frames / count;
    const auto pause = static_cast<std::int64_t>(share(timing, static_cast<std::uint64_t>(i)) *
                                                 static_cast<double>(all) / 4);
    const std::int64_t begin = end - all + pause;
    for (std::int64_t t = begin; t < end; ++t) {
      const double x = (static_cast<double>(t - begin) + 0.5) / static_cast<double>(end - begin);
      const auto level = static_cast<float>(4 * x * (1 - x));
      float* const row = features.data() + static_cast<std::size_t>(t) * width;
      for (std::size_t band = 0; band < width; ++band) row[band] += level * voice[band];
    }
  }
}

std::string token_text(std::int64_t token) {
  std::string out;
  for (std::int64_t rest = token;; rest /= kSyllables) {
    const auto syllable = static_cast<std::size_t>(rest % kSyllables);
    out.insert(0, {kConsonants[syllable / kVowels.size()], kVowels[syllable % kVowels.size()]});
    if (rest < kSyllables) return out;
  }
}

std::string transcript(std::span<const std::int64_t> tokens) {
  std::string out;
  for (const std::int64_t token : tokens) out += (out.empty() ? "" : " ") + token_text(token);
  return out;
}

}  // namespace octavo_train
