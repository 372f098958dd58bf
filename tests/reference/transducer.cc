// SPDX-License-Identifier: MIT
#include "tests/reference/transducer.h"

#include <cmath>
#include <span>

namespace reference {
namespace {

std::vector<long double> softmax(std::span<const long double> logits) {
  long double sum = 0.0L;
  for (const long double x : logits) sum += std::exp(x);
  std::vector<long double> out;
  for (const long double x : logits) out.push_back(std::exp(x) / sum);
  return out;
}

class Enumeration {
 public:
  explicit Enumeration(const TransducerClip& clip) : clip_(clip) {
    const auto rows = static_cast<std::size_t>(clip.frames) * (clip.labels.size() + 1);
    const auto tokens = static_cast<std::size_t>(clip.tokens), durations = clip.durations.size();
    for (std::size_t i = 0; i < rows; ++i) {
      tokens_.push_back(softmax({clip.token_logits.data() + i * tokens, tokens}));
      durations_.push_back(softmax({clip.duration_logits.data() + i * durations, durations}));
    }
  }

  // Follows all alignments from (t, u), which is reached with probability p.
  void walk(std::int64_t t, std::size_t u, long double p) {
    if (t == clip_.frames) {
      if (u == clip_.labels.size()) {
        sum.probability += p;
        ++sum.alignments;
      }
      return;
    }
    const std::size_t row = static_cast<std::size_t>(t) * (clip_.labels.size() + 1) + u;
    const bool more = u < clip_.labels.size();
    const long double scale =
        clip_.durations.empty() ? 1.0L : std::exp(-static_cast<long double>(clip_.sigma));
    const long double blank = p * scale * tokens_[row][static_cast<std::size_t>(clip_.blank)];
    const long double label =
        more ? p * scale * tokens_[row][static_cast<std::size_t>(clip_.labels[u])] : 0.0L;
    if (clip_.durations.empty()) {
      walk(t + 1, u, blank);
      if (more) walk(t, u + 1, label);
      return;
    }
    for (std::size_t i = 0; i < clip_.durations.size(); ++i) {
      const std::int64_t to = t + clip_.durations[i];
      if (to > clip_.frames) continue;
      // A blank reaches the end only after the last label, and a label never does.
      if (to > t && (to < clip_.frames || !more)) walk(to, u, blank * durations_[row][i]);
      if (more && to < clip_.frames) walk(to, u + 1, label * durations_[row][i]);
    }
  }

  TransducerSum sum;

 private:
  const TransducerClip& clip_;
  std::vector<std::vector<long double>> tokens_, durations_;
};

}  // namespace

TransducerSum sum_alignments(const TransducerClip& clip) {
  Enumeration all(clip);
  all.walk(0, 0, 1.0L);
  return all.sum;
}

long double transducer_loss(const TransducerClip& clip) {
  return -std::log(sum_alignments(clip).probability);
}

}  // namespace reference
