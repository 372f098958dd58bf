// Lists the tensors of a name that --shape accepts; see shapes.h.
//
// gpt2: GPT-2 124M with its vocabulary padded to 50,304 rows (head tied to wte): 148 tensors, 124,475,904
// parameters.
//
// gpt2-embedding: GPT-2's token embedding alone, with its original 50,257 rows.
//
// parakeet: Parakeet TDT 0.6B v3, 646 tensors, 627,006,854 parameters: the list with which the published
// numbers of other libraries were measured. It omits the biases (256 elements each) of the five subsampling
// convolutions encoder.pre_encode.conv.*, which the model has. The model has 651 trainable tensors and
// 627,008,134 parameters: the 725 tensors of its state dictionary without the feature extractor's two and
// each layer's three batch-norm statistics.
//
// moe: two layers of a transformer with 64 experts each, whose weights are stacked as [expert, out, in].
//
// lora: 1,536 adapters of rank 8, 3,072 tensors of 8,192 elements.
//
// vit-g: DINOv2's ViT-giant for 224 pixels (40 layers of width 1536, SwiGLU), as transformers builds it.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/shapes.h"

#include "cli/cli.h"

#include <string>
#include <utility>

namespace octavo::cli {
namespace {

using List = std::vector<TensorShape>;
using Sizes = std::initializer_list<std::int64_t>;

void add(List& out, const std::string& name, Sizes sizes, TensorRole role = TensorRole::dense) {
  out.emplace_back(name, sizes).role = role;
}

// Adds a weight and its bias. The bias has the size of the weight's first dimension unless `bias` is given.
void add_with_bias(List& out, const std::string& name, Sizes weight, std::int64_t bias = 0) {
  add(out, name + ".weight", weight);
  add(out, name + ".bias", {bias > 0 ? bias : *weight.begin()});
}

constexpr std::int64_t kGpt2Width = 768;

List gpt2_tensors() {
  constexpr std::int64_t kWidth = kGpt2Width;
  List out;
  add(out, "wte.weight", {50304, kWidth});
  add(out, "wpe.weight", {1024, kWidth});
  for (int layer = 0; layer < 12; ++layer) {
    const std::string at = "h." + std::to_string(layer) + ".";
    add_with_bias(out, at + "ln_1", {kWidth});
    add_with_bias(out, at + "attn.c_attn", {kWidth, 3 * kWidth}, 3 * kWidth);  // Conv1D stores [in, out]
    add_with_bias(out, at + "attn.c_proj", {kWidth, kWidth});
    add_with_bias(out, at + "ln_2", {kWidth});
    add_with_bias(out, at + "mlp.c_fc", {kWidth, 4 * kWidth}, 4 * kWidth);
    add_with_bias(out, at + "mlp.c_proj", {4 * kWidth, kWidth}, kWidth);
  }
  add_with_bias(out, "ln_f", {kWidth});
  return out;
}

List gpt2_embedding_tensors() {
  List out;
  add(out, "wte.weight", {50257, kGpt2Width}, TensorRole::tokens);
  return out;
}

void add_parakeet_layer(List& out, const std::string& at) {
  constexpr std::int64_t kWidth = 1024, kFeedForward = 4096, kHeads = 8, kKernel = 9;
  for (const char* side : {"1", "2"}) {
    add_with_bias(out, at + "norm_feed_forward" + side, {kWidth});
    add(out, at + "feed_forward" + side + ".linear1.weight", {kFeedForward, kWidth});
    add(out, at + "feed_forward" + side + ".linear2.weight", {kWidth, kFeedForward});
  }
  add_with_bias(out, at + "norm_conv", {kWidth});
  add(out, at + "conv.pointwise_conv1.weight", {2 * kWidth, kWidth, 1});
  add(out, at + "conv.depthwise_conv.weight", {kWidth, 1, kKernel});
  add_with_bias(out, at + "conv.batch_norm", {kWidth});
  add(out, at + "conv.pointwise_conv2.weight", {kWidth, kWidth, 1});
  add_with_bias(out, at + "norm_self_att", {kWidth});
  add(out, at + "self_attn.pos_bias_u", {kHeads, kWidth / kHeads});
  add(out, at + "self_attn.pos_bias_v", {kHeads, kWidth / kHeads});
  for (const char* which : {"q", "k", "v", "out", "pos"})
    add(out, at + "self_attn.linear_" + which + ".weight", {kWidth, kWidth});
  add_with_bias(out, at + "norm_out", {kWidth});
}

List parakeet_tensors() {
  constexpr std::int64_t kChannels = 256, kWidth = 1024, kHidden = 640, kVocabulary = 8192, kDurations = 5;
  List out;
  const std::string conv = "encoder.pre_encode.conv.";  // without biases: see the comment at the top
  add(out, conv + "0.weight", {kChannels, 1, 3, 3});
  for (const auto& [depthwise, pointwise] : {std::pair("2", "3"), std::pair("5", "6")}) {
    add(out, conv + depthwise + ".weight", {kChannels, 1, 3, 3});
    add(out, conv + pointwise + ".weight", {kChannels, kChannels, 1, 1});
  }
  add_with_bias(out, "encoder.pre_encode.out", {kWidth, 16 * kChannels});
  for (int layer = 0; layer < 24; ++layer)
    add_parakeet_layer(out, "encoder.layers." + std::to_string(layer) + ".");
  add(out, "decoder.prediction.embed.weight", {kVocabulary + 1, kHidden});
  for (const char* layer : {"_l0", "_l1"}) {
    const std::string at = "decoder.prediction.dec_rnn.lstm.";
    for (const char* gate : {"ih", "hh"}) {
      add(out, at + "weight_" + gate + layer, {4 * kHidden, kHidden});
      add(out, at + "bias_" + gate + layer, {4 * kHidden});
    }
  }
  add_with_bias(out, "joint.pred", {kHidden, kHidden});
  add_with_bias(out, "joint.enc", {kHidden, kWidth});
  add_with_bias(out, "joint.joint_net.2", {kVocabulary + 1 + kDurations, kHidden});
  return out;
}

List moe_tensors() {
  constexpr std::int64_t kExperts = 64, kWidth = 768, kFeedForward = 384;
  List out;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = "layers." + std::to_string(layer) + ".";
    add(out, at + "norm_attention.weight", {kWidth});
    for (const char* which : {"q", "k", "v", "o"})
      add(out, at + "attention." + which + ".weight", {kWidth, kWidth});
    add(out, at + "norm_experts.weight", {kWidth});
    add(out, at + "router.weight", {kExperts, kWidth});
    for (const char* which : {"gate", "up"})
      add(out, at + "experts." + which, {kExperts, kFeedForward, kWidth}, TensorRole::experts);
    add(out, at + "experts.down", {kExperts, kWidth, kFeedForward}, TensorRole::experts);
  }
  return out;
}

List lora_tensors() {
  constexpr std::int64_t kAdapters = 1536, kRank = 8, kWidth = 1024;
  List out;
  for (std::int64_t i = 0; i < kAdapters; ++i) {
    const std::string at = "adapters." + std::to_string(i) + ".";
    add(out, at + "lora_A", {kRank, kWidth}, TensorRole::adapter_in);
    add(out, at + "lora_B", {kWidth, kRank}, TensorRole::adapter_out);
  }
  return out;
}

List vit_g_tensors() {
  constexpr std::int64_t kWidth = 1536, kHidden = 4096, kPatch = 14, kPatches = 16 * 16;
  List out;
  add(out, "embeddings.cls_token", {1, 1, kWidth});
  add(out, "embeddings.mask_token", {1, kWidth});
  add(out, "embeddings.position_embeddings", {1, kPatches + 1, kWidth});
  add_with_bias(out, "embeddings.patch_embeddings.projection", {kWidth, 3, kPatch, kPatch});
  for (int layer = 0; layer < 40; ++layer) {
    const std::string at = "encoder.layer." + std::to_string(layer) + ".";
    add_with_bias(out, at + "norm1", {kWidth});
    for (const char* which : {"attention.query", "attention.key", "attention.value", "output.dense"})
      add_with_bias(out, at + "attention." + which, {kWidth, kWidth});
    add(out, at + "layer_scale1.lambda1", {kWidth});
    add_with_bias(out, at + "norm2", {kWidth});
    add_with_bias(out, at + "mlp.weights_in", {2 * kHidden, kWidth});
    add_with_bias(out, at + "mlp.weights_out", {kWidth, kHidden});
    add(out, at + "layer_scale2.lambda1", {kWidth});
  }
  add_with_bias(out, "layernorm", {kWidth});
  return out;
}

constexpr std::int64_t kFlatRow = 1024;

std::vector<TensorShape> flat(std::int64_t numel) {
  std::vector<TensorShape> out{TensorShape("flat", {numel})};
  out.front().row = kFlatRow;
  return out;
}

struct Model {
  const char* name;
  std::vector<TensorShape> (*tensors)();
};

constexpr std::array<Model, 6> kModels = {{{"gpt2", gpt2_tensors},
                                           {"parakeet", parakeet_tensors},
                                           {"gpt2-embedding", gpt2_embedding_tensors},
                                           {"moe", moe_tensors},
                                           {"lora", lora_tensors},
                                           {"vit-g", vit_g_tensors}}};

}  // namespace

TensorShape::TensorShape(std::string tensor_name, std::initializer_list<std::int64_t> sizes)
    : name(std::move(tensor_name)) {
  for (const std::int64_t size : sizes) dims.at(static_cast<std::size_t>(ndim++)) = size;
  if (ndim > 1) row = numel() / dims[0];
}

std::int64_t TensorShape::numel() const {
  std::int64_t product = 1;
  for (int i = 0; i < ndim; ++i) product *= dims[static_cast<std::size_t>(i)];
  return product;
}

std::vector<std::string> shape_names() {
  std::vector<std::string> out{"flat"};
  for (const Model& model : kModels) out.emplace_back(model.name);
  return out;
}

std::vector<TensorShape> tensor_list(std::string_view name, std::int64_t flat_numel) {
  if (name == "flat") return flat(flat_numel);
  for (const Model& model : kModels)
    if (name == model.name) return model.tensors();
  throw Failure(kExitUsage,
                "--shape: got '" + std::string(name) + "', expected one of " + joined(shape_names()));
}

}  // namespace octavo::cli
