// Tests greedy decoding against a plain loop over rows, frames and labels.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/greedy.h"

#include "tests/speech/model_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <random>
#include <string>

namespace octavo_train {
namespace {

using Durations = std::vector<std::int64_t>;
constexpr std::int64_t kTokens = 5, kHidden = 6, kWidth = 4;

// A head with random weights in float64, so that rounding in matmuls of other shapes does not change any
// decision.
class RandomHead : public TransducerHead {
 public:
  RandomHead(unsigned seed, Durations durations, double blank_bias, const torch::Device& device = torch::kCPU)
      : durations_(std::move(durations)) {
    torch::manual_seed(seed);
    const auto random = [&](std::int64_t in, std::int64_t out) {
      return (2 * torch::randn({in, out}, torch::kFloat64)).to(device);
    };
    encoder_ = random(kWidth, kHidden);
    embedding_ = random(kTokens + 1, kHidden);
    embedding_[kTokens].zero_();
    recurrent_ = random(kHidden, kHidden);
    out_ = random(kHidden, kTokens + 1 + static_cast<std::int64_t>(durations_.size()));
    blank_bias_ = blank_bias;
  }

  torch::Tensor project_frames(const torch::Tensor& frames) override { return frames.matmul(encoder_); }

  std::pair<torch::Tensor, PredictorState> predict(const torch::Tensor& tokens,
                                                   const PredictorState& state) override {
    ++predictions;
    const torch::Tensor in = embedding_.index_select(0, tokens);
    const torch::Tensor before = state.h.defined() ? state.h[0].matmul(recurrent_) + state.c[0] : 0 * in;
    const torch::Tensor h = (in + before).tanh();
    return {h, {h.unsqueeze(0), in.unsqueeze(0)}};
  }

  torch::Tensor joint(const torch::Tensor& f, const torch::Tensor& g) override {
    torch::Tensor out = (f + g).tanh().matmul(out_);
    out.select(1, kTokens).add_(blank_bias_);
    return out;
  }

  [[nodiscard]] std::int64_t blank() const override { return kTokens; }
  [[nodiscard]] const Durations& durations() const override { return durations_; }

  std::int64_t predictions = 0;

 private:
  Durations durations_;
  torch::Tensor encoder_, embedding_, recurrent_, out_;
  double blank_bias_ = 0;
};

std::int64_t best(const torch::Tensor& scores) { return scores.argmax().item<std::int64_t>(); }

// REQUIRES: `frames` is [length, width].
Transcript plain_loop(TransducerHead& head, const torch::Tensor& frames, std::int64_t max_symbols) {
  Transcript out;
  auto [g, state] = head.predict(torch::full({1}, head.blank(), torch::kInt64), {});
  std::int64_t t = 0, at_frame = 0;
  while (t < frames.size(0)) {
    const torch::Tensor f = head.project_frames(frames[t].view({1, 1, -1})).view({1, -1});
    const torch::Tensor scores = head.joint(f, g)[0];
    const std::int64_t token = best(scores.slice(0, 0, head.blank() + 1));
    std::int64_t duration = 0;
    if (!head.durations().empty())
      duration = head.durations()[static_cast<std::size_t>(best(scores.slice(0, head.blank() + 1)))];
    std::int64_t moves = duration;
    if (token == head.blank()) {
      moves = std::max<std::int64_t>(duration, 1);
    } else {
      out.push_back({token, t, duration});
      std::tie(g, state) = head.predict(torch::full({1}, token, torch::kInt64), state);
      if (duration == 0 && ++at_frame == max_symbols) moves = 1;
    }
    if (moves > 0) at_frame = 0;
    t += moves;
  }
  return out;
}

std::string text(const Transcript& transcript) {
  std::string out;
  for (const Emission& e : transcript) {
    out += std::to_string(e.token) + '@' + std::to_string(e.frame) + '+' + std::to_string(e.duration) + ' ';
  }
  return out;
}

const std::vector<Durations> kSets = {{},  {0, 1, 2, 3, 4}, {1, 2, 3, 4}, {4, 2, 0, 1}, {3, 1, 2}, {0},
                                      {1}, {0, 13},         {2, 5}};

TEST(Greedy, EqualsThePlainLoop) {
  std::mt19937 random(3);
  std::size_t labels = 0, stays = 0, jumps = 0, empty = 0;
  for (unsigned seed = 0; seed < 180; ++seed) {
    RandomHead head(seed, kSets[seed % kSets.size()], std::vector{-1.0, 1.0, 4.0}[seed % 3]);
    const std::int64_t rows = 1 + random() % 4, frames = 1 + random() % 20;
    const torch::Tensor x = torch::randn({rows, frames, kWidth}, torch::kFloat64);
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < rows; ++i) lengths.push_back(random() % (frames + 1));
    lengths[random() % lengths.size()] = frames;
    GreedyOptions options;
    options.max_symbols = std::vector{1, 2, 10}[random() % 3];
    options.window = std::vector{1, 2, 3, 8, 32}[random() % 5];
    options.rounds_per_check = std::vector{0, 1, 5}[random() % 3];
    const auto got = decode_greedy(head, x, torch::tensor(lengths), options);
    ASSERT_EQ(got.size(), lengths.size());
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t length = lengths[static_cast<std::size_t>(i)];
      const Transcript expected = plain_loop(head, x[i].slice(0, 0, length), options.max_symbols);
      ASSERT_EQ(text(got[static_cast<std::size_t>(i)]), text(expected)) << "seed " << seed << ", row " << i;
      for (const Emission& e : expected) {
        stays += e.duration == 0 ? 1 : 0;
        jumps += e.frame + e.duration > length ? 1 : 0;
      }
      labels += expected.size();
      empty += length == 0 ? 1 : 0;
    }
  }
  // The random cases cover each situation.
  EXPECT_GT(labels, 1000U);
  EXPECT_GT(stays, 100U);
  EXPECT_GT(jumps, 20U);
  EXPECT_GT(empty, 10U);
}

TEST(Greedy, ABatchGivesWhatEachRowGivesAlone) {
  RandomHead head(1, {0, 1, 2, 3, 4}, 1.0);
  const torch::Tensor x = torch::randn({6, 30, kWidth}, torch::kFloat64);
  const std::vector<std::int64_t> lengths = {30, 1, 0, 17, 30, 29};
  const auto all = decode_greedy(head, x, torch::tensor(lengths));
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    const std::int64_t length = lengths[static_cast<std::size_t>(i)];
    const auto alone = decode_greedy(head, x.slice(0, i, i + 1).slice(1, 0, length), torch::tensor({length}));
    ASSERT_EQ(alone.size(), 1U);
    EXPECT_EQ(text(alone[0]), text(all[static_cast<std::size_t>(i)])) << i;
  }
}

TEST(Greedy, OfTheModelEqualsThePlainLoop) {
  for (const SpeechHead kind : {SpeechHead::tdt, SpeechHead::rnnt}) {
    torch::manual_seed(5);
    SpeechModelSettings settings = tiny_model();
    settings.head = kind;
    SpeechModel model(settings);
    model->to(torch::kFloat64);
    model->eval();
    const torch::NoGradGuard no_grad;
    const torch::Tensor frames = 4 * torch::randn({3, 12, settings.width}, torch::kFloat64);
    const std::vector<std::int64_t> lengths = {12, 5, 1};
    const auto got = decode_greedy(*model, frames, torch::tensor(lengths), {.max_symbols = 3});
    std::size_t labels = 0;
    for (std::int64_t i = 0; i < 3; ++i) {
      const Transcript& row = got[static_cast<std::size_t>(i)];
      const std::int64_t length = lengths[static_cast<std::size_t>(i)];
      EXPECT_EQ(text(row), text(plain_loop(*model, frames[i].slice(0, 0, length), 3))) << i;
      labels += row.size();
    }
    EXPECT_GT(labels, 5U);
  }
}

// One call predicts the labels of all rows, and frames without a label need no call.
TEST(Greedy, AsksThePredictionNetworkOncePerLabel) {
  RandomHead head(2, {0, 1, 2}, 2.0);
  const torch::Tensor x = torch::randn({16, 64, kWidth}, torch::kFloat64);
  GreedyOptions options;
  options.window = 64;  // always contains the next label
  const auto got = decode_greedy(head, x, torch::full({16}, 64, torch::kInt64), options);
  std::size_t most = 0, all = 0;
  for (const Transcript& row : got) {
    most = std::max(most, row.size());
    all += row.size();
  }
  EXPECT_GT(all, 3 * most);
  // Two more: the start, and the blanks at the end.
  EXPECT_LE(head.predictions, static_cast<std::int64_t>(most) + 2);
}

// Scores from a table: [frame][labels so far] = {token, index of the duration}; elsewhere blank with index 0.
class ScriptedHead : public TransducerHead {
 public:
  using Script = std::map<std::pair<std::int64_t, std::int64_t>, std::pair<std::int64_t, std::int64_t>>;
  ScriptedHead(Script script, Durations durations)
      : script_(std::move(script)), durations_(std::move(durations)) {}

  torch::Tensor project_frames(const torch::Tensor& frames) override {
    return frames;
  }  // a frame is its own number
  std::pair<torch::Tensor, PredictorState> predict(const torch::Tensor& tokens,
                                                   const PredictorState& state) override {
    const torch::Tensor n = state.h.defined() ? state.h[0] + 1 : torch::zeros({tokens.size(0), 1});
    return {n, {n.unsqueeze(0), n.unsqueeze(0)}};
  }
  torch::Tensor joint(const torch::Tensor& f, const torch::Tensor& g) override {
    const auto durations = static_cast<std::int64_t>(durations_.size());
    torch::Tensor out = torch::zeros({f.size(0), kTokens + 1 + durations});
    for (std::int64_t i = 0; i < f.size(0); ++i) {
      const auto at = script_.find({f[i].item<std::int64_t>(), g[i].item<std::int64_t>()});
      const auto [token, duration] = at == script_.end() ? std::pair{kTokens, std::int64_t{0}} : at->second;
      out[i][token] = 1;
      if (durations > 0) out[i][kTokens + 1 + duration] = 1;
    }
    return out;
  }
  [[nodiscard]] std::int64_t blank() const override { return kTokens; }
  [[nodiscard]] const Durations& durations() const override { return durations_; }

 private:
  Script script_;
  Durations durations_;
};

std::string scripted(const ScriptedHead::Script& script, const Durations& durations, std::int64_t frames,
                     std::int64_t max_symbols = 10) {
  ScriptedHead head(script, durations);
  const torch::Tensor x = torch::arange(frames, torch::kFloat32).view({1, frames, 1});
  GreedyOptions options;
  options.max_symbols = max_symbols;
  return text(decode_greedy(head, x, torch::tensor({frames}), options)[0]);
}

TEST(Greedy, KnownScripts) {
  EXPECT_EQ(scripted({}, {0, 1}, 5), "");
  // A blank of duration 0 advances by 1 and one of duration 3 by 3, so that the label at frame 2 is skipped.
  EXPECT_EQ(scripted({{{1, 0}, {5, 1}}, {{2, 0}, {4, 0}}, {{4, 0}, {3, 0}}}, {0, 3}, 6), "3@4+0 ");
  // Durations are used by value, not by index. A label's duration may extend beyond the last frame.
  EXPECT_EQ(scripted({{{0, 0}, {1, 0}}, {{4, 1}, {2, 2}}, {{4, 2}, {3, 0}}}, {4, 1, 0}, 6),
            "1@0+4 2@4+0 3@4+4 ");
  // After max_symbols labels at a frame the next frame follows; the counter restarts at each frame.
  ScriptedHead::Script all;
  for (std::int64_t t = 0; t < 3; ++t)
    for (std::int64_t u = 0; u < 20; ++u) all[{t, u}] = {1, 0};
  EXPECT_EQ(scripted(all, {0, 1}, 3, 2), "1@0+0 1@0+0 1@1+0 1@1+0 1@2+0 1@2+0 ");
  EXPECT_EQ(scripted(all, {}, 2, 3), "1@0+0 1@0+0 1@0+0 1@1+0 1@1+0 1@1+0 ");
  // Frame 0 gives a label that stays and one that advances; frame 1 still allows max_symbols labels.
  EXPECT_EQ(
      scripted({{{0, 0}, {1, 0}}, {{0, 1}, {2, 1}}, {{1, 2}, {3, 0}}, {{1, 3}, {4, 0}}, {{1, 4}, {4, 0}}},
               {0, 1}, 2, 2),
      "1@0+0 2@0+1 3@1+0 4@1+0 ");
}

TEST(Greedy, RefusesWhatCannotBeDecoded) {
  RandomHead head(1, {0, 1}, 0);
  const torch::Tensor x = torch::randn({2, 3, kWidth}, torch::kFloat64);
  const auto decode = [&](const torch::Tensor& lengths, const GreedyOptions& options = {}) {
    return decode_greedy(head, x, lengths, options);
  };
  const auto message = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "nothing thrown";
  };
  using testing::HasSubstr;
  EXPECT_THAT(message([&] { decode(torch::tensor({3, 4})); }), HasSubstr("got lengths from 3 to 4"));
  EXPECT_THAT(message([&] { decode(torch::tensor({-1, 2})); }), HasSubstr("got lengths from -1 to 2"));
  EXPECT_THAT(message([&] {
                decode(torch::tensor({1, 2, 3}));
              }),
              HasSubstr("expected [rows, frames, width]"));
  EXPECT_THAT(message([&] { decode(torch::tensor({1.0, 2.0})); }), HasSubstr("int64"));
  EXPECT_THAT(message([&] {
                decode(torch::tensor({1, 2}), {.max_symbols = 0});
              }),
              HasSubstr("max_symbols 0"));
  EXPECT_THAT(message([&] { decode_ctc(x, torch::tensor({3, 4})); }), HasSubstr("got lengths from 3 to 4"));
  EXPECT_EQ(decode_greedy(head, x.slice(0, 0, 0), torch::empty({0}, torch::kInt64)).size(), 0U);
  EXPECT_EQ(decode_greedy(head, x.slice(1, 0, 0), torch::tensor({0, 0})).size(), 2U);
}

TEST(Greedy, Ctc) {
  const std::int64_t b = 3;
  const std::vector<std::vector<std::int64_t>> rows = {{b, 0, 0, b, 0, 1, 1, 1, b},
                                                       {2, 2, 2, b, b, 1, 0, 0, 0},
                                                       {b, b, b, b, b, b, b, b, b},
                                                       {0, 0, 0, 0, 0, 0, 0, 0, 0}};
  torch::Tensor scores = torch::zeros({4, 9, 4});
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t t = 0; t < rows[i].size(); ++t)
      scores[static_cast<std::int64_t>(i)][static_cast<std::int64_t>(t)][rows[i][t]] = 2;
  const auto got = decode_ctc(scores, torch::tensor({9, 7, 9, 0}));
  ASSERT_EQ(got.size(), 4U);
  EXPECT_EQ(text(got[0]), "0@1+2 0@4+1 1@5+3 ");
  EXPECT_EQ(text(got[1]), "2@0+3 1@5+1 0@6+1 ");
  EXPECT_EQ(text(got[2]), "");
  EXPECT_EQ(text(got[3]), "");
}

TEST(Greedy, OnAGpuAsOnTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  for (unsigned seed = 0; seed < 18; ++seed) {
    const Durations& durations = kSets[seed % kSets.size()];
    RandomHead head(seed, durations, 1.0), there(seed, durations, 1.0, torch::kCUDA);
    const torch::Tensor x = torch::randn({8, 50, kWidth}, torch::kFloat64);
    const torch::Tensor lengths = torch::tensor({50, 49, 0, 1, 33, 50, 7, 8});
    const auto expected = decode_greedy(head, x, lengths);
    const auto got = decode_greedy(there, x.cuda(), lengths.cuda());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(text(got[i]), text(expected[i])) << seed << ' ' << i;
  }
}

}  // namespace
}  // namespace octavo_train
