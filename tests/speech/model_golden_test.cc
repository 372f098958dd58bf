// Tests the model against a tiny model of transformers with the same weights, in training mode on a padded
// batch: encoder, logits, loss, every gradient and the statistics of BatchNorm. Also tests the published
// model's names and sizes.
// SPDX-License-Identifier: MIT
#include "model_support.h"
#include "train/checkpoint/tensors.h"
#include "train/formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

namespace octavo_train {
namespace {

class Golden {
 public:
  explicit Golden(const std::string& path = OCTAVO_TEST_SPEECH_DIR "/parakeet_tiny.safetensors")
      : file_(Safetensors::open(path)) {
    EXPECT_TRUE(file_.ok()) << file_.status().message();
    const Result<NamedTensors> views = views_of(*file_, "golden");
    for (const auto& [name, tensor] : *views) tensors_[name] = tensor;
  }
  [[nodiscard]] const torch::Tensor& at(const std::string& name) const { return tensors_.at(name); }
  // Returns the number of result tensors (not inputs or weights).
  [[nodiscard]] std::size_t results() const {
    return static_cast<std::size_t>(std::count_if(tensors_.begin(), tensors_.end(), [](const auto& each) {
      return each.first.starts_with("out.") || each.first.starts_with("g.") ||
             each.first.starts_with("after.");
    }));
  }

  void load_into(torch::nn::Module& model) const {
    const torch::NoGradGuard no_grad;
    for (auto& each : model.named_parameters()) each.value().copy_(at("w." + each.key()));
    for (auto& each : model.named_buffers()) each.value().copy_(at("w." + each.key()));
  }

  // Derives the settings from the sizes of the weights.
  [[nodiscard]] SpeechModelSettings settings() const {
    SpeechModelSettings out = tiny_model();
    const auto size = [&](const std::string& name, std::int64_t dim) { return at("w." + name).size(dim); };
    out.mel_bands = at("in.features").size(2);
    out.subsampling_channels = size("encoder.subsampling.layers.0.weight", 0);
    out.width = size("encoder.subsampling.linear.weight", 0);
    out.heads = size("encoder.layers.0.self_attn.bias_u", 0);
    out.feed_forward = size("encoder.layers.0.feed_forward1.linear1.weight", 0);
    out.vocabulary = size("decoder.embedding.weight", 0) - 1;
    out.predictor_width = size("decoder.embedding.weight", 1);
    out.joint_width = size("joint.head.weight", 1);
    for (out.encoder_layers = 0;
         tensors_.contains("w.encoder.layers." + std::to_string(out.encoder_layers) + ".norm_out.bias");)
      ++out.encoder_layers;
    return out;
  }

  [[nodiscard]] Clips clips() const {
    const auto numbers = [&](const char* name) {
      const torch::Tensor& t = at(name);
      return std::vector<std::int64_t>(t.data_ptr<std::int64_t>(), t.data_ptr<std::int64_t>() + t.numel());
    };
    return {at("in.features"), at("in.labels"), numbers("in.lengths"), numbers("in.label_lengths")};
  }

 private:
  Result<Safetensors> file_;
  std::map<std::string, torch::Tensor> tensors_;
};

// The results of one forward and backward pass: outputs, gradients and buffers by name, on the CPU.
using Results = std::map<std::string, torch::Tensor>;

// Zeroes frames beyond a clip's length: they have no meaning, and versions of transformers differ there.
void keep_real_frames(const Golden& golden, Results& results) {
  const torch::Tensor& lengths = golden.at("out.enc_lengths");
  for (const char* name : {"out.encoder", "out.logits"}) {
    if (!results.contains(name)) continue;
    for (std::int64_t i = 0; i < lengths.size(0); ++i)
      results.at(name)[i].slice(0, lengths[i].item<std::int64_t>()).zero_();
  }
}

enum class Loss { plain, tiled };

Results run(const Golden& golden, torch::ScalarType type, Loss kind,
            const torch::Device& device = torch::kCPU) {
  SpeechModelImpl model(golden.settings());
  golden.load_into(model);
  model.to(device, type);
  for (auto& each : model.named_buffers()) {  // to() also converts num_batches_tracked to floating point
    if (each.key().ends_with("num_batches_tracked")) each.value().set_data(each.value().to(torch::kInt64));
  }
  Clips clips = golden.clips();
  clips.features = clips.features.to(device, type);
  clips.targets = clips.targets.to(device);
  const std::int64_t labels = std::accumulate(clips.labels.begin(), clips.labels.end(), std::int64_t{0});
  Results out;
  torch::Tensor loss;
  if (kind == Loss::tiled) {
    loss = model.loss(clips.view(), {});
  } else {
    const Encoded encoded = model.encode(clips.features, clips.lengths(), {});
    const torch::Tensor logits = logits_of(model, encoded, clips.targets, {});
    loss = plain_losses(model, clips, logits).sum() / static_cast<double>(labels);
    out = {{"out.encoder", encoded.frames}, {"out.logits", logits}};
    EXPECT_TRUE(encoded.lengths.cpu().equal(golden.at("out.enc_lengths")));
  }
  loss.backward();
  out["out.loss"] = loss.view({1});
  for (const auto& each : model.named_parameters()) out["g." + each.key()] = each.value().grad();
  for (const auto& each : model.named_buffers()) out["after." + each.key()] = each.value();
  for (auto& each : out) each.second = each.second.detach().cpu();
  keep_real_frames(golden, out);
  return out;
}

// Returns the file's results of these names. Transformers trains the embedding row of blank, which NeMo and
// this model do not, so its gradient is zeroed.
Results results_of(const Golden& golden, const Results& names) {
  Results out;
  for (const auto& [name, tensor] : names) out[name] = golden.at(name).clone();
  out.at("g.decoder.embedding.weight")[-1].zero_();
  keep_real_frames(golden, out);
  return out;
}

double largest(const torch::Tensor& x) { return x.abs().max().to(torch::kFloat64).item<double>(); }

// Compares fp32 results by their distance from fp64 results with the same weights: the largest error of
// `others` is at most four times the largest error of `fp32`. If the latter happens to be zero, the unit is
// the last place of the largest number.
//
// cuDNN's LSTM approximates sigmoid and tanh, so results that pass through it on a GPU may have an additional
// error of `gates` times the largest number.
void expect_as_close(const Results& others, const Results& fp32, const Results& fp64, double gates = 0.0) {
  for (const auto& [name, other] : others) {
    const torch::Tensor& exact = fp64.at(name);
    ASSERT_EQ(other.sizes(), exact.sizes()) << name;
    const double last_place = std::ldexp(largest(exact), -23);
    const double own = largest(fp32.at(name).to(torch::kFloat64) - exact);
    const double through_gates = name.starts_with("g.decoder.") ? gates * largest(exact) : 0.0;
    EXPECT_LE(largest(exact - other.to(torch::kFloat64)), 4 * (own + last_place) + through_gates)
        << name << ": the largest is " << largest(exact) << ", fp32 is off by " << own;
  }
}

// Checks that `fp32` itself is close to `fp64`.
void expect_close(const Results& fp32, const Results& fp64) {
  for (const auto& [name, exact] : fp64)
    EXPECT_LE(largest(fp32.at(name).to(torch::kFloat64) - exact), 1e-3 * largest(exact) + 1e-8) << name;
}

TEST(SpeechGolden, EqualsTransformers) {
  const Golden golden;
  const Results fp64 = run(golden, torch::kFloat64, Loss::plain),
                fp32 = run(golden, torch::kFloat32, Loss::plain);
  EXPECT_EQ(fp64.size() + 1, golden.results());  // the lengths were compared already
  expect_close(fp32, fp64);
  expect_as_close(results_of(golden, fp64), fp32, fp64);
  const Results tiled = run(golden, torch::kFloat32, Loss::tiled);
  EXPECT_EQ(tiled.size() + 2, fp32.size());
  expect_as_close(tiled, fp32, fp64);
}

TEST(SpeechGolden, OnAGpuAsOnTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  at::globalContext().setAllowTF32CuDNN(false);
  const Golden golden;
  const Results fp64 = run(golden, torch::kFloat64, Loss::plain),
                fp32 = run(golden, torch::kFloat32, Loss::plain);
  const double gates = std::ldexp(1.0, -16);
  expect_as_close(run(golden, torch::kFloat32, Loss::plain, torch::kCUDA), fp32, fp64, gates);
  expect_as_close(run(golden, torch::kFloat32, Loss::tiled, torch::kCUDA), fp32, fp64, gates);
}

// The criterion for a file with many activations: results as above, and gradients with an additional
// tolerance of 2^-6 of their largest number. A gradient jumps if the input of a ReLU is so close to zero that
// it has the other sign in fp32, and among hundreds of thousands of inputs some are.
void expect_close_but_for_kinks(const Results& others, const Results& fp32, const Results& fp64) {
  Results smooth;
  for (const auto& [name, other] : others) {
    if (!name.starts_with("g.")) {
      smooth[name] = other;
      continue;
    }
    const torch::Tensor& exact = fp64.at(name);
    ASSERT_EQ(other.sizes(), exact.sizes()) << name;
    const double own = largest(fp32.at(name).to(torch::kFloat64) - exact);
    EXPECT_LE(largest(exact - other.to(torch::kFloat64)), 4 * own + std::ldexp(largest(exact), -6)) << name;
  }
  expect_as_close(smooth, fp32, fp64);
}

// See make_golden.py. Runs on a GPU if there is one.
TEST(SpeechGolden, AFileGivenByHand) {
  const char* path = std::getenv("OCTAVO_TEST_SPEECH_GOLDEN");
  if (path == nullptr) GTEST_SKIP() << "OCTAVO_TEST_SPEECH_GOLDEN names no file";
  at::globalContext().setAllowTF32CuDNN(false);
  const torch::Device device = torch::cuda::is_available() ? torch::kCUDA : torch::kCPU;
  const Golden golden{std::string(path)};
  const Results fp32 = run(golden, torch::kFloat32, Loss::plain, device),
                fp64 = run(golden, torch::kFloat64, Loss::plain, device);
  expect_close_but_for_kinks(results_of(golden, fp64), fp32, fp64);
  expect_close_but_for_kinks(run(golden, torch::kFloat32, Loss::tiled, device), fp32, fp64);
}

// Returns shape and kind by name.
std::map<std::string, std::string> published() {
  std::ifstream file(OCTAVO_TEST_SPEECH_DIR "/parakeet_v3_names.txt");
  std::map<std::string, std::string> out;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto tab = line.find('\t');
    out[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return out;
}

std::map<std::string, std::string> tensors_with_shapes(const torch::nn::Module& model) {
  std::map<std::string, std::string> out;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor, const char* kind) {
    std::ostringstream text;
    text << tensor.sizes() << '\t' << kind;
    out[name] = text.str();
  };
  for (const auto& each : model.named_parameters()) add(each.key(), each.value(), "param");
  for (const auto& each : model.named_buffers()) add(each.key(), each.value(), "buffer");
  return out;
}

// Returns the parameter count of the complete model, given a model with one layer.
std::int64_t parameters_in(const SpeechModelImpl& one) {
  std::int64_t out = 0;
  for (const auto& each : one.named_parameters())
    out += each.value().numel() *
           (each.key().starts_with("encoder.layers.") ? SpeechModelSettings().encoder_layers : 1);
  return out;
}

TEST(SpeechGolden, NamesAndSizesAreThePublishedOnes) {
  const auto wanted = published();
  EXPECT_EQ(wanted.size(), 723U);
  // The names of a narrow model with all layers.
  SpeechModelSettings narrow = tiny_model();
  narrow.encoder_layers = SpeechModelSettings().encoder_layers;
  std::set<std::string> names, wanted_names;
  for (const auto& [name, shape] : tensors_with_shapes(SpeechModelImpl(narrow))) names.insert(name);
  for (const auto& [name, shape] : wanted) wanted_names.insert(name);
  EXPECT_EQ(names, wanted_names);
  // The shapes and counts of a model with one layer of the real width.
  SpeechModelSettings settings;
  settings.encoder_layers = 1;
  const SpeechModelImpl v3(settings);
  for (const auto& [name, shape] : tensors_with_shapes(v3)) EXPECT_EQ(shape, wanted.at(name)) << name;
  EXPECT_EQ(parameters_in(v3), 627'008'134);
  settings.vocabulary = 1024;
  EXPECT_EQ(parameters_in(SpeechModelImpl(settings)), 617'825'926);
}

}  // namespace
}  // namespace octavo_train
