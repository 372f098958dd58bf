// The transducer losses as direct recursions with autograd: the reference that models are compared with.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace octavo_train {

// Returns minus the log of the sum over the alignments of one clip, for logits [T, U + 1, tokens + durations]
// whose last token is blank. Without durations it is the RNN-T loss: a label stays in its frame, and blank
// advances by one.
inline torch::Tensor plain_transducer(const torch::Tensor& logits, const std::vector<std::int64_t>& labels,
                                      const std::vector<std::int64_t>& durations, double sigma) {
  const auto frames = logits.size(0), count = static_cast<std::int64_t>(labels.size());
  const auto kinds = static_cast<std::int64_t>(durations.size()), tokens = logits.size(2) - kinds;
  const torch::Tensor wide = logits.to(torch::kFloat64);
  const torch::Tensor token = wide.narrow(2, 0, tokens).log_softmax(2) - (durations.empty() ? 0.0 : sigma);
  // Scalars per cell, and per cell and duration. The last position has no next label; it reads blank's score
  // instead.
  const auto numbers = [](const torch::Tensor& x) { return x.cpu().flatten().unbind(); };
  std::vector<std::int64_t> next_labels = labels;
  next_labels.push_back(tokens - 1);
  const torch::Tensor which =
      torch::tensor(next_labels).to(token.device()).view({1, -1, 1}).expand({frames, count + 1, 1});
  const std::vector<torch::Tensor> blank = numbers(token.select(2, tokens - 1)),
                                   label = numbers(token.gather(2, which)),
                                   duration = numbers(wide.narrow(2, tokens, kinds).log_softmax(2));
  const auto cell = [&](std::int64_t t, std::int64_t u) {
    return static_cast<std::size_t>(t * (count + 1) + u);
  };
  const auto lengths = durations.empty() ? std::vector<std::int64_t>{0, 1} : durations;
  std::vector<std::vector<torch::Tensor>> into(static_cast<std::size_t>(
      (frames + 1) * (count + 1)));  // arcs that end in a cell or after the last frame
  const auto arcs = [&](std::int64_t t, std::int64_t u) -> std::vector<torch::Tensor>& {
    return into[cell(t, u)];
  };
  arcs(0, 0).push_back(torch::zeros({}, torch::kFloat64));
  for (std::int64_t t = 0; t < frames; ++t) {
    for (std::int64_t u = 0; u <= count; ++u) {
      if (arcs(t, u).empty()) continue;
      const torch::Tensor here = torch::stack(arcs(t, u)).logsumexp(0);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::int64_t next = t + lengths[i];
        const torch::Tensor start =
            durations.empty() ? here : here + duration[cell(t, u) * lengths.size() + i];
        const bool may_blank = lengths[i] > 0 && (next < frames || (next == frames && u == count));
        if (may_blank) arcs(next, u).push_back(start + blank[cell(t, u)]);
        const bool may_label = u < count && next < frames && (!durations.empty() || lengths[i] == 0);
        if (may_label) arcs(next, u + 1).push_back(start + label[cell(t, u)]);
      }
    }
  }
  return -torch::stack(arcs(frames, count)).logsumexp(0);
}

}  // namespace octavo_train
