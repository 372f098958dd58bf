// Tests the speech model: recomputed activations, frozen parts, dropout, heads, precisions and the smallest
// clips.
// SPDX-License-Identifier: MIT
#include "train/model/model.h"
#include "tests/speech/model_support.h"
#include "tests/train/fp8_reference.h"
#include "train/nn/recompute.h"
#include "train/nn/subsampling.h"
#include "train/optim/fp8.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <vector>

namespace octavo_train {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;

SpeechModel make(const SpeechModelSettings& settings) {
  torch::manual_seed(5);
  SpeechModel out(settings);
  // Gives statistics and affine parameters values that differ between channels.
  const torch::NoGradGuard no_grad;
  for (auto& each : out->named_parameters())
    if (each.value().dim() == 1) each.value().add_(torch::randn_like(each.value()) * 0.1);
  for (auto& each : out->named_buffers())
    if (each.value().dim() == 1) each.value().add_(torch::rand_like(each.value()) * 0.1);
  out->train();
  return out;
}

Tensors gradients(const torch::nn::Module& model) {
  Tensors out;
  for (const auto& each : model.named_parameters())
    if (each.value().grad().defined()) out[each.key()] = each.value().grad();
  return out;
}

Tensors buffers(const torch::nn::Module& model) {
  Tensors out;
  for (const auto& each : model.named_buffers()) out[each.key()] = each.value().clone();
  return out;
}

void expect_equal(const Tensors& got, const Tensors& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(got.at(name).equal(tensor)) << name;
}

bool finite(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const auto& each) { return each.second.isfinite().all().template item<bool>(); });
}

// Returns the gradients and buffers after a forward and backward pass, with recomputed activations if
// `again`.
std::pair<Tensors, Tensors> pass_with(bool again, bool frozen_front, const torch::Device& device, bool bf16) {
  SpeechModelSettings settings = with_dropout(tiny_model());
  settings.checkpoint_encoder = settings.checkpoint_decoder = again;
  SpeechModel model = make(settings);
  for (auto& each : model->named_parameters()) {
    if (bf16 && each.value().dim() >= 2) each.value().set_data(each.value().detach().to(torch::kBFloat16));
    const bool front =
        each.key().find("subsampling") != std::string::npos || each.key().find("embed") != std::string::npos;
    each.value().set_requires_grad(!(frozen_front && front));
  }
  model->to(device);
  torch::manual_seed(1);
  Clips clips = random_clips({80, 64, 9}, {5, 0, 3});
  clips.features = clips.features.to(device);
  clips.targets = clips.targets.to(device);
  model->loss(clips.view(), pass_of({11, 5, 8}, device)).backward();
  return {gradients(*model), buffers(*model)};
}

void expect_checkpointing_changes_no_bit(const torch::Device& device, bool bf16) {
  for (const bool frozen_front : {false, true}) {
    const auto [grads, after] = pass_with(false, frozen_front, device, bf16);
    const auto [grads_again, after_again] = pass_with(true, frozen_front, device, bf16);
    expect_equal(grads_again, grads);
    expect_equal(after_again, after);
    EXPECT_TRUE(finite(grads));
    EXPECT_EQ(grads.count("encoder.subsampling.layers.0.weight"), frozen_front ? 0U : 1U);
    EXPECT_EQ(after.at("encoder.layers.1.conv.norm.num_batches_tracked").item<std::int64_t>(), 1);
  }
}

TEST(SpeechModel, CheckpointingChangesNoBit) {
  expect_checkpointing_changes_no_bit(torch::kCPU, false);
  expect_checkpointing_changes_no_bit(torch::kCPU, true);
}

// Runs the encoder and the projections in FP8, on the CPU's reference: every weight of a matmul is used in
// FP8, and recomputation gives the same bits. The accuracy of gradients is tested for single matmuls only: in
// this small model with random weights, gradients change completely even if torch only rounds the weights to
// E4M3, without any FP8 matmul.
TEST(SpeechModel, ProductsInFp8) {
  const Fp8Reference reference;
  const auto pass = [](bool in_fp8, bool again) {
    SpeechModelSettings settings = tiny_model();
    settings.checkpoint_encoder = settings.checkpoint_decoder = again;
    SpeechModel model = make(settings);
    Fp8Settings how;
    how.recipe.amax_history_len = 4;
    Fp8 fp8(how, parameters_of(*model));
    torch::manual_seed(1);
    const Clips clips = random_clips({80, 64, 9}, {5, 0, 3});
    const auto loss = [&] { return model->loss(clips.view(), pass_of({11, 5, 8})); };
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      fp8.step_done(torch::zeros({}));
      const MatmulPrecisionScope scope = in_fp8 ? fp8.scope() : MatmulPrecisionScope(nullptr);
      loss().backward();
    }
    Tensors out = gradients(*model);
    NamedTensors states;
    nlohmann::ordered_json numbers;
    fp8.save(states, numbers);
    for (const auto& [name, state] : states) {
      const torch::Tensor weight = model->named_parameters()[name];
      const bool of_product = weight.dim() == 2 || weight.size(2) == 1;
      if (name.rfind("encoder.layers.", 0) == 0 && of_product && name.find("bias") == std::string::npos) {
        EXPECT_EQ((state.select(1, 2) > 0).all().item<bool>(), in_fp8) << name;
      }
      out["fp8 " + name] = state;
    }
    return out;
  };
  const Tensors plain = pass(false, false), kept = pass(true, false);
  expect_equal(pass(true, true), kept);
  EXPECT_TRUE(finite(kept));
  const auto off = [&](const std::string& name) {
    return (kept.at(name) - plain.at(name)).norm().item<double>() / plain.at(name).norm().item<double>();
  };
  for (const auto& [name, grad] : plain) {
    if (name.rfind("encoder.layers.", 0) != 0 || grad.dim() != 2) continue;
    EXPECT_GT(off(name), 1e-4) << name;
  }
}

// The gate is called for every parameter's module before its use, and for the encoder's layers one by one.
TEST(SpeechModel, TellsWhichWeightsItIsAboutToUse) {
  for (const SpeechHead head : {SpeechHead::tdt, SpeechHead::ctc}) {
    SpeechModelSettings settings = tiny_model();
    settings.head = head;
    SpeechModel model(settings);
    std::set<const void*> told;
    std::vector<std::size_t> counts;
    model->set_gate([&](const torch::nn::Module& module) {
      for (const torch::Tensor& param : module.parameters()) told.insert(param.unsafeGetTensorImpl());
      counts.push_back(told.size());
    });
    torch::manual_seed(1);
    Clips clips = random_clips({80, 64}, {5, 3});
    model->loss(clips.view(), pass_of({11, 5}, torch::kCPU));
    EXPECT_EQ(told.size(), model->parameters().size());
    EXPECT_GE(counts.size(), static_cast<std::size_t>(settings.encoder_layers) + 2);
    EXPECT_LT(counts.front(), told.size());
  }
}

TEST(SpeechModel, CheckpointingChangesNoBitOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  at::globalContext().setDeterministicCuDNN(true);  // like the trainer
  expect_checkpointing_changes_no_bit(torch::kCUDA, false);
  expect_checkpointing_changes_no_bit(torch::kCUDA, true);
}

TEST(SpeechModel, RowsComputedAgainInPartsGiveTheSameGradients) {
  torch::manual_seed(1);
  const auto random = [](at::IntArrayRef shape) { return torch::randn(shape, torch::kFloat64); };
  const torch::Tensor features = random({5, 21, 11});
  const torch::Tensor lengths = torch::tensor(std::vector<std::int64_t>{21, 3, 8, 1, 17});
  std::vector<torch::Tensor> weights = {random({4, 1, 3, 3}), random({4}), random({4, 1, 3, 3}), random({4}),
                                        random({4, 4, 1, 1}), random({4}), random({4, 1, 3, 3}), random({4}),
                                        random({4, 4, 1, 1}), random({4})};
  for (torch::Tensor& weight : weights) weight.requires_grad_();
  weights[3].requires_grad_(false);
  std::vector<std::int64_t> most;  // rows per call
  const auto segment = [&most](const std::vector<torch::Tensor>& in, const std::vector<torch::Tensor>& w) {
    most.push_back(in[0].size(0));
    return subsample(in[0], in[1], {w[0], w[1], {{{w[2], w[3], w[4], w[5]}, {w[6], w[7], w[8], w[9]}}}});
  };
  const auto run = [&](const std::function<torch::Tensor()>& forward) {
    for (torch::Tensor& weight : weights) weight.mutable_grad().reset();
    const torch::Tensor out = forward();
    out.square().sum().backward();
    std::vector<torch::Tensor> all = {out};
    for (const torch::Tensor& weight : weights)
      if (weight.requires_grad()) all.push_back(weight.grad());
    EXPECT_FALSE(weights[3].grad().defined());
    return all;
  };
  const auto plain = run([&] { return segment({features, lengths}, weights); });
  EXPECT_EQ(plain[0].sizes(), (std::vector<std::int64_t>{5, 3, 8}));
  for (const std::int64_t at_once : {1, 2, 5, 9}) {
    most.clear();
    const auto parts = run([&] { return recompute_rows(segment, {features, lengths}, weights, at_once); });
    EXPECT_EQ(*std::max_element(most.begin(), most.end()), std::min<std::int64_t>(at_once, 5));
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_TRUE(parts[i].allclose(plain[i], 1e-13, 1e-12)) << at_once << ' ' << i;
  }
  EXPECT_THROW(recompute_rows(segment, {features, lengths}, weights, 0), c10::Error);
  EXPECT_THROW(recompute_rows(segment, {weights[0], lengths}, weights, 1), c10::Error);
  const torch::Tensor twice = recompute_rows(segment, {features, lengths}, weights, 2).sum();
  EXPECT_THROW(torch::autograd::grad({twice}, {weights[0]}, {}, {}, true), c10::Error);
}

TEST(SpeechModel, FrozenBatchNormIsThatOfEvaluation) {
  torch::manual_seed(1);
  const Clips clips = random_clips({80, 33}, {2, 2});
  SpeechModelSettings settings = tiny_model();
  settings.freeze_batch_norm = true;
  SpeechModel model = make(settings);
  const Tensors before = buffers(*model);
  const torch::Tensor training = model->encode(clips.features, clips.lengths(), {}).frames;
  training.square().mean().backward();
  expect_equal(buffers(*model), before);
  EXPECT_TRUE(finite(gradients(*model)));
  EXPECT_GT(gradients(*model).at("encoder.layers.0.conv.norm.weight").abs().max().item<float>(), 0);
  model->eval();
  EXPECT_TRUE(model->encode(clips.features, clips.lengths(), {}).frames.equal(training));
}

// BatchNorm is frozen, so that clips do not influence each other.
TEST(SpeechModel, AClipsDropoutDependsOnNeitherPlaceNorPadding) {
  torch::manual_seed(1);
  const Clips clips = random_clips({80, 48}, {5, 3});
  SpeechModelSettings settings = with_dropout(tiny_model());
  settings.freeze_batch_norm = true;
  SpeechModel model = make(settings);
  const torch::NoGradGuard no_grad;
  const Clips second{clips.features.narrow(0, 1, 1).narrow(1, 0, 48),
                     clips.targets.narrow(0, 1, 1).narrow(1, 0, 3),
                     {48},
                     {3}};
  const auto run = [&](const Clips& some, const DropoutKey& pass) {
    const torch::Tensor frames = model->encode(some.features, some.lengths(), pass).frames;
    const torch::Tensor labels = model->predictions(some.targets, pass);
    return std::pair{frames[-1].narrow(0, 0, 6), labels[-1].narrow(0, 0, 4)};
  };
  const auto [alone, labels_alone] = run(second, pass_of({9}));
  const auto [beside, labels_beside] = run(clips, pass_of({4, 9}));
  const auto [other, labels_other] = run(second, pass_of({10}));
  // The values are equal except for the order of sums in matmuls.
  EXPECT_TRUE(alone.allclose(beside, 0, 1e-5)) << (alone - beside).abs().max();
  EXPECT_TRUE(labels_alone.allclose(labels_beside, 0, 1e-6));
  EXPECT_GT((alone - other).abs().max().item<float>(), 0.1);
  EXPECT_GT((labels_alone - labels_other).abs().max().item<float>(), 0.01);
}

TEST(SpeechModel, ABatchsLossIsTheSumOfItsClips) {
  torch::manual_seed(1);
  const Clips clips = random_clips({80, 48, 33}, {5, 3, 0});
  SpeechModelSettings settings = with_dropout(tiny_model());
  settings.freeze_batch_norm = true;
  settings.reduction = "sum";
  const torch::NoGradGuard no_grad;
  for (const SpeechHead head : {SpeechHead::tdt, SpeechHead::rnnt, SpeechHead::ctc}) {
    settings.head = head;
    SpeechModel model = make(settings);
    const double all = model->loss(clips.view(), pass_of({4, 9, 2})).item<double>();
    double sum = 0;
    const std::vector<std::int64_t> samples = {4, 9, 2};
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto k = static_cast<std::size_t>(i);
      const Clips one{clips.features.narrow(0, i, 1).narrow(1, 0, clips.frames[k]),
                      clips.targets.narrow(0, i, 1).narrow(1, 0, clips.labels[k]),
                      {clips.frames[k]},
                      {clips.labels[k]}};
      sum += model->loss(one.view(), pass_of({samples[k]})).item<double>();
    }
    EXPECT_NEAR(all, sum, sum * 1e-5) << static_cast<int>(head);
    EXPECT_GT(std::abs(all - model->loss(clips.view(), pass_of({4, 9, 3})).item<double>()), sum * 1e-4);
  }
}

TEST(SpeechModel, TransducersAreThePlainRecursions) {
  torch::manual_seed(1);
  const Clips clips = random_clips({80, 41, 9}, {4, 0, 3});
  SpeechModelSettings settings = tiny_model();
  settings.reduction = "mean_batch";
  for (const SpeechHead head : {SpeechHead::tdt, SpeechHead::rnnt}) {
    settings.head = head;
    SpeechModel model = make(settings), plain = make(settings);
    const torch::Tensor loss = model->loss(clips.view(), {});
    const Encoded encoded = plain->encode(clips.features, clips.lengths(), {});
    const torch::Tensor wanted =
        plain_losses(*plain, clips, logits_of(*plain, encoded, clips.targets, {})).mean();
    EXPECT_NEAR(loss.item<double>(), wanted.item<double>(), wanted.item<double>() * 1e-6);
    loss.backward();
    wanted.backward();
    const Tensors got = gradients(*model), right = gradients(*plain);
    const auto largest = [](const torch::Tensor& x) { return x.abs().max().item<double>(); };
    double of_all = 0;
    for (const auto& [name, grad] : right) of_all = std::max(of_all, largest(grad));
    // The gradients of attention's scores are small differences of larger numbers, hence the absolute
    // tolerance.
    for (const auto& [name, grad] : right)
      EXPECT_LE(largest(got.at(name) - grad), largest(grad) * 1e-5 + of_all * 1e-7) << name;
  }
}

TEST(SpeechModel, TheSmallestClipsAreFinite) {
  torch::manual_seed(1);
  SpeechModelSettings settings = with_dropout(tiny_model());
  for (const SpeechHead head : {SpeechHead::tdt, SpeechHead::rnnt, SpeechHead::ctc}) {
    settings.head = head;
    for (const auto& labels : {std::vector<std::int64_t>{0, 0, 0}, {0, 3, 1}}) {
      for (const auto& frames : {std::vector<std::int64_t>{1, 8, 1}, {1, 64, 9}}) {
        SpeechModel model = make(settings);
        const torch::Tensor loss = model->loss(random_clips(frames, labels).view(), pass_of({0, 1, 2}));
        loss.backward();
        EXPECT_TRUE(loss.isfinite().item<bool>());
        EXPECT_TRUE(finite(gradients(*model)));
      }
    }
    // BatchNorm sees a single frame: its mean moves by a tenth, and its variance is zero.
    SpeechModel model = make(settings);
    const Tensors before = buffers(*model);
    model->loss(random_clips({8}, {0}).view(), pass_of({0})).backward();
    EXPECT_TRUE(finite(gradients(*model)));
    const std::string norm = "encoder.layers.1.conv.norm.";
    EXPECT_TRUE(buffers(*model).at(norm + "running_var").allclose(before.at(norm + "running_var") * 0.9));
    EXPECT_FALSE(buffers(*model).at(norm + "running_mean").equal(before.at(norm + "running_mean")));
    EXPECT_TRUE(finite(buffers(*model)));
  }
}

TEST(SpeechModel, CtcIsTorchsWithThreeReductions) {
  torch::manual_seed(1);
  // The last clip has too few frames for its labels.
  const Clips clips = random_clips({80, 64, 16}, {5, 0, 3});
  const std::map<std::string, std::vector<double>> shares = {{"mean_batch", {1. / 3, 1. / 3, 1. / 3}},
                                                             {"mean", {1. / 15, 1. / 3, 1. / 9}},
                                                             {"mean_volume", {1. / 8, 1. / 8, 1. / 8}}};
  for (const auto& [reduction, share] : shares) {
    SpeechModelSettings settings = tiny_model();
    settings.head = SpeechHead::ctc;
    settings.reduction = reduction;
    SpeechModel model = make(settings);
    model->eval();
    const torch::Tensor loss = model->loss(clips.view(), {});
    loss.backward();
    EXPECT_TRUE(finite(gradients(*model)));
    EXPECT_EQ(model->named_parameters()["ctc_head.weight"].sizes(), (std::vector<std::int64_t>{33, 64, 1}));
    const torch::Tensor logits = model->ctc_logits(model->encode(clips.features, clips.lengths(), {}).frames);
    const torch::Tensor losses =
        torch::ctc_loss(logits.to(torch::kFloat64).log_softmax(2).transpose(0, 1), clips.targets, {10, 8, 2},
                        {5, 0, 3}, 32, at::Reduction::None, false);
    EXPECT_TRUE(losses[2].isinf().item<bool>());
    const double wanted = share[0] * losses[0].item<double>() + share[1] * losses[1].item<double>();
    EXPECT_NEAR(loss.item<double>(), wanted, wanted * 1e-5) << reduction;
    EXPECT_THROW(model->project_frames(logits), c10::Error);
  }
}

// bf16 has 8 bits: the relative error after n roundings is sqrt(n) 2^-9 on average. A layer has about 30
// roundings.
TEST(SpeechModel, Bf16IsCloseToFp32) {
  torch::manual_seed(1);
  const Clips clips = random_clips({80, 61}, {5, 3});
  SpeechModel model = make(with_dropout(tiny_model()));
  const DropoutKey pass = pass_of({1, 2});
  const auto run = [&] {
    const Encoded encoded = model->encode(clips.features, clips.lengths(), pass);
    const torch::Tensor logits = logits_of(*model, encoded, clips.targets, pass);
    const auto dtype = logits.scalar_type();
    model->zero_grad();
    logits.to(torch::kFloat32).square().mean().backward();
    Tensors out = {{"frames", encoded.frames.detach().to(torch::kFloat32)},
                   {"logits", logits.detach().to(torch::kFloat32)}};
    for (const auto& [name, grad] : gradients(*model)) out[name] = grad.to(torch::kFloat32).clone();
    return std::pair{out, dtype};
  };
  const auto expect_near = [](const Tensors& got, const Tensors& wanted) {
    for (const auto& [name, tensor] : wanted) {
      const double off = ((got.at(name) - tensor).norm() / tensor.norm()).item<double>();
      const double roundings = name == "frames" || name == "logits" ? 60 : 180;
      EXPECT_LT(off, 6 * std::sqrt(roundings) * std::ldexp(1.0, -9)) << name;
    }
  };
  const auto [fp32, is_fp32] = run();
  EXPECT_EQ(is_fp32, torch::kFloat32);
  at::autocast::set_autocast_enabled(torch::kCPU, true);
  at::autocast::set_autocast_dtype(torch::kCPU, torch::kBFloat16);
  const auto [mixed, is_mixed] = run();
  EXPECT_EQ(is_mixed, torch::kBFloat16);
  expect_near(mixed, fp32);
  for (const bool autocast : {true, false}) {
    at::autocast::set_autocast_enabled(torch::kCPU, autocast);
    for (torch::Tensor& param : model->parameters())
      if (param.dim() >= 2) param.set_data(param.detach().to(torch::kBFloat16));
    model->zero_grad(true);
    const auto [narrow, is_narrow] = run();
    EXPECT_EQ(is_narrow, torch::kBFloat16);
    expect_near(narrow, fp32);
  }
  at::autocast::clear_cache();
}

TEST(SpeechModel, StepsOfDecodingAreThoseOfTraining) {
  SpeechModel model = make(tiny_model());
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = torch::randint(32, {3, 4}, torch::kInt64);
  const torch::Tensor all = model->predictions(tokens, {});
  PredictorState state;
  for (std::int64_t u = 0; u <= 4; ++u) {
    const torch::Tensor token =
        u == 0 ? torch::full({3}, model->blank(), torch::kInt64) : tokens.select(1, u - 1);
    auto [g, after] = model->predict(token, state);
    state = after;
    EXPECT_TRUE(g.allclose(all.select(1, u), 1e-5, 1e-6)) << u;
  }
  EXPECT_EQ(state.h.sizes(), (std::vector<std::int64_t>{2, 3, 48}));
}

TEST(SpeechModel, RefusesWhatIsNoModel) {
  const auto refused = [](const std::function<void(SpeechModelSettings&)>& change, const char* word) {
    SpeechModelSettings settings = tiny_model();
    change(settings);
    try {
      const SpeechModelImpl model(settings);
      FAIL() << word;
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  refused([](auto& s) { s.heads = 5; }, "width is 64");
  refused([](auto& s) { s.kernel = 8; }, "kernel is 8");
  refused([](auto& s) { s.vocabulary = 0; }, "vocabulary is 0");
  refused([](auto& s) { s.durations = {0}; }, "duration");
  refused([](auto& s) { s.joint_dropout = 1; }, "dropout is 1");
  refused([](auto& s) { s.reduction = "most"; }, "most");
  SpeechModel model = make(tiny_model());
  EXPECT_THROW(model->encode(torch::zeros({1, 8, 31}), torch::tensor({8}), {}), c10::Error);
}

}  // namespace
}  // namespace octavo_train
