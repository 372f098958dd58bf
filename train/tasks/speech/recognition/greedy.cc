// Label looping: the prediction network runs once per round, for all rows that have found their next label.
// Between two labels only the joint runs, with the same prediction for every frame. So the joint of a window
// of frames is one matmul, and skipping its blanks takes log2(window) steps of pointer doubling on the
// device. A row without a label in its window continues with the following window in the next round, while
// the other rows continue after their labels. The host checks only every few rounds if any row is unfinished.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/greedy.h"

#include "train/tasks/speech/model/speech_model.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::int64_t kRoundsPerCheck = 8;  // on a device that the host would have to wait for
constexpr std::int64_t kNothing = -1;

class LabelLoop {
 public:
  LabelLoop(TransducerHead& head, const torch::Tensor& frames, torch::Tensor lengths,
            const GreedyOptions& options)
      : head_(head), options_(options), lengths_(std::move(lengths)) {
    const auto ints = lengths_.options();
    rows_ = frames.size(0);
    frames_ = frames.size(1);
    projected_ = head.project_frames(frames).flatten(0, 1);
    durations_ = head.durations().empty() ? torch::Tensor() : torch::tensor(head.durations(), ints);
    const auto& all = head.durations();
    farthest_ = all.empty() ? 1 : std::max<std::int64_t>(1, *std::max_element(all.begin(), all.end()));
    // The frame offsets in a window, and the offsets after it that a blank can reach.
    places_ = torch::arange(options.window + farthest_, ints);
    first_ = torch::arange(rows_, ints).mul_(frames_).unsqueeze(1);
    time_ = torch::zeros({rows_}, ints);
    symbols_ = torch::zeros({rows_}, ints);
    std::tie(prediction_, state_) = head.predict(torch::full({rows_}, head.blank(), ints), {});
  }

  [[nodiscard]] bool left() const { return (time_ < lengths_).any().item<bool>(); }

  // Advances each row to its next label or past its window. Returns [3, rows]: each row's label (kNothing if
  // none), frame and duration.
  torch::Tensor round() {
    const Window window = look();
    const torch::Tensor place = walk(window).select(1, 0), at = time_ + place;
    const torch::Tensor inside = place.clamp_max(options_.window - 1).unsqueeze(1);
    const auto there = [&](const torch::Tensor& x) { return x.gather(1, inside).squeeze(1); };
    const torch::Tensor token = there(window.tokens), duration = there(window.durations);
    const torch::Tensor found =
        (place < options_.window).logical_and_(at < lengths_).logical_and_(token != head_.blank());
    advance(place, at, duration, found);
    predict(token, found);
    return torch::stack({token.masked_fill(found.logical_not(), kNothing), at, duration});
  }

 private:
  // The most likely label (possibly blank) and its duration, by row and frame offset.
  struct Window {
    torch::Tensor tokens, durations;
  };

  Window look() {
    const torch::Tensor frame =
        (time_.unsqueeze(1) + places_.slice(0, 0, options_.window)).clamp_max_(frames_ - 1).add_(first_);
    const torch::Tensor f = projected_.index_select(0, frame.flatten());
    const torch::Tensor g =
        prediction_.unsqueeze(1).expand({rows_, options_.window, prediction_.size(1)}).reshape(f.sizes());
    const torch::Tensor logits = head_.joint(f, g);
    const std::int64_t labels = head_.blank() + 1;
    Window out;
    out.tokens = logits.slice(1, 0, labels).argmax(1).view({rows_, options_.window});
    out.durations = durations_.defined()
                        ? durations_.index_select(0, logits.slice(1, labels).argmax(1)).view_as(out.tokens)
                        : torch::zeros_like(out.tokens);
    return out;
  }

  // Returns, for each frame offset, the offset that is reached by following blanks: that of a label, of the
  // end of the row, or one after the window.
  torch::Tensor walk(const Window& window) {
    const torch::Tensor here = places_.slice(0, 0, options_.window);
    const torch::Tensor goes_on =
        (window.tokens == head_.blank()).logical_and_((time_.unsqueeze(1) + here) < lengths_.unsqueeze(1));
    const torch::Tensor steps = here + window.durations.clamp_min(1).mul_(goes_on);
    const torch::Tensor outside = places_.slice(0, options_.window).expand({rows_, farthest_});
    torch::Tensor next = torch::cat({steps, outside}, 1);
    for (std::int64_t reach = 1; reach < options_.window; reach *= 2) next = next.gather(1, next);
    return next;
  }

  void advance(const torch::Tensor& place, const torch::Tensor& at, const torch::Tensor& duration,
               const torch::Tensor& found) {
    const torch::Tensor stays = found.logical_and(duration == 0);
    // The number of labels at this frame, including the new label.
    const torch::Tensor count = symbols_.masked_fill(place != 0, 0).add_(1).mul_(stays);
    const torch::Tensor enough = count >= options_.max_symbols;
    symbols_ = count.masked_fill(enough, 0);
    time_ = at + duration * found + enough;
  }

  void predict(const torch::Tensor& token, const torch::Tensor& found) {
    auto [prediction, state] = head_.predict(token, state_);
    const torch::Tensor row = found.unsqueeze(1);
    prediction_ = torch::where(row, prediction, prediction_);
    state_.h = torch::where(row, state.h, state_.h);  // [layers, rows, hidden]
    state_.c = torch::where(row, state.c, state_.c);
  }

  TransducerHead& head_;
  GreedyOptions options_;
  std::int64_t rows_ = 0, frames_ = 0, farthest_ = 1;
  torch::Tensor lengths_, projected_, durations_, places_, first_;
  torch::Tensor time_;     // the current frame of each row
  torch::Tensor symbols_;  // labels found at the current frame
  torch::Tensor prediction_;
  PredictorState state_;
};

void check_lengths(const torch::Tensor& frames, const torch::Tensor& lengths) {
  TORCH_CHECK(frames.dim() == 3 && lengths.dim() == 1 && lengths.size(0) == frames.size(0) &&
                  lengths.scalar_type() == torch::kInt64 && lengths.device() == frames.device(),
              "decoding: got frames ", frames.sizes(), " and lengths ", lengths.sizes(), " of ",
              lengths.scalar_type(), ", expected [rows, frames, width] and int64 [rows] on one device");
  if (lengths.numel() == 0) return;
  const auto [least, most] = lengths.aminmax();
  const torch::Tensor ends = torch::stack({least, most}).cpu();
  const auto* end = ends.data_ptr<std::int64_t>();
  TORCH_CHECK(end[0] >= 0 && end[1] <= frames.size(1), "decoding: got lengths from ", end[0], " to ", end[1],
              ", expected 0 to the ", frames.size(1), " frames of the tensor");
}

}  // namespace

std::vector<Transcript> decode_greedy(TransducerHead& head, const torch::Tensor& frames,
                                      const torch::Tensor& lengths, const GreedyOptions& options) {
  TORCH_CHECK(options.max_symbols >= 1, "decoding: got max_symbols ", options.max_symbols,
              ", expected at least 1");
  TORCH_CHECK(options.window >= 1 && options.rounds_per_check >= 0, "decoding: got window ", options.window,
              " and rounds_per_check ", options.rounds_per_check, ", expected at least 1 and 0");
  check_lengths(frames, lengths);
  std::vector<Transcript> out(static_cast<std::size_t>(frames.size(0)));
  if (frames.size(0) == 0 || frames.size(1) == 0) return out;
  const torch::NoGradGuard no_grad;
  LabelLoop loop(head, frames, lengths, options);
  std::vector<torch::Tensor> rounds;
  std::int64_t per_check = options.rounds_per_check;
  if (per_check == 0) per_check = frames.device().is_cpu() ? 1 : kRoundsPerCheck;
  while (loop.left())
    for (std::int64_t i = 0; i < per_check; ++i) rounds.push_back(loop.round());
  if (rounds.empty()) return out;
  const torch::Tensor all = torch::stack(rounds).cpu();
  const auto found = all.accessor<std::int64_t, 3>();
  for (std::int64_t i = 0; i < all.size(0); ++i) {
    for (std::int64_t row = 0; row < all.size(2); ++row) {
      if (found[i][0][row] == kNothing) continue;
      out[static_cast<std::size_t>(row)].push_back({found[i][0][row], found[i][1][row], found[i][2][row]});
    }
  }
  return out;
}

std::vector<Transcript> decode_ctc(const torch::Tensor& scores, const torch::Tensor& lengths) {
  check_lengths(scores, lengths);
  const torch::NoGradGuard no_grad;
  const std::int64_t blank = scores.size(2) - 1;
  const torch::Tensor best = scores.argmax(2).cpu(), counts = lengths.cpu();
  const auto tokens = best.accessor<std::int64_t, 2>();
  std::vector<Transcript> out(static_cast<std::size_t>(scores.size(0)));
  for (std::int64_t row = 0; row < scores.size(0); ++row) {
    std::int64_t before = blank;
    for (std::int64_t t = 0; t < counts.data_ptr<std::int64_t>()[row]; ++t) {
      Transcript& labels = out[static_cast<std::size_t>(row)];
      const std::int64_t token = tokens[row][t];
      if (token != blank && token == before) ++labels.back().duration;
      if (token != blank && token != before) labels.push_back({token, t, 1});
      before = token;
    }
  }
  return out;
}

std::vector<Transcript> decode_encoded(SpeechModelImpl& model, const Encoded& encoded) {
  const SpeechModelSettings& settings = model.settings();
  return settings.head == SpeechHead::ctc
             ? decode_ctc(model.ctc_logits(encoded.frames), encoded.lengths)
             : decode_greedy(model, encoded.frames, encoded.lengths, {.max_symbols = settings.max_symbols});
}

}  // namespace octavo_train
