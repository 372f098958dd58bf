// The tensor lists behind `octavo bench optimizer --shape`, and the parser of --numel.
//
// gpt2: GPT-2 124M with its vocabulary padded to 50,304 rows (head tied to wte): 148 tensors, 124,475,904
// parameters.
//
// parakeet: Parakeet TDT 0.6B v3, 646 tensors, 627,006,854 parameters: the list with which the published
// numbers of other libraries were measured. It leaves out the biases (256 elements each) of the five
// subsampling convolutions encoder.pre_encode.conv.*, which the model itself has: 651 trainable tensors and
// 627,008,134 parameters, the 725 tensors of its state dictionary without the feature extractor's two and
// each layer's three batch-norm statistics.
// SPDX-License-Identifier: MIT
#include "bench/shapes.h"

#include "cli.h"

#include <charconv>
#include <system_error>
#include <utility>

namespace octavo::cli {
namespace {

using List = std::vector<TensorShape>;
using Sizes = std::initializer_list<std::int64_t>;

void add(List& out, const std::string& name, Sizes sizes) { out.emplace_back(name, sizes); }

// A weight and its bias, as long as the weight's first dimension unless given.
void add_with_bias(List& out, const std::string& name, Sizes weight, std::int64_t bias = 0) {
  add(out, name + ".weight", weight);
  add(out, name + ".bias", {bias > 0 ? bias : *weight.begin()});
}

List gpt2() {
  constexpr std::int64_t kWidth = 768;
  List out;
  add(out, "wte.weight", {50304, kWidth});
  add(out, "wpe.weight", {1024, kWidth});
  for (int layer = 0; layer < 12; ++layer) {
    const std::string at = "h." + std::to_string(layer) + ".";
    add_with_bias(out, at + "ln_1", {kWidth});
    add_with_bias(out, at + "attn.c_attn", {kWidth, 3 * kWidth}, 3 * kWidth);  // Conv1D keeps [in, out]
    add_with_bias(out, at + "attn.c_proj", {kWidth, kWidth});
    add_with_bias(out, at + "ln_2", {kWidth});
    add_with_bias(out, at + "mlp.c_fc", {kWidth, 4 * kWidth}, 4 * kWidth);
    add_with_bias(out, at + "mlp.c_proj", {4 * kWidth, kWidth}, kWidth);
  }
  add_with_bias(out, "ln_f", {kWidth});
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

List parakeet() {
  constexpr std::int64_t kChannels = 256, kWidth = 1024, kHidden = 640, kVocabulary = 8192, kDurations = 5;
  List out;
  const std::string conv = "encoder.pre_encode.conv.";  // without biases: see the first comment
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

}  // namespace

TensorShape::TensorShape(std::string tensor_name, std::initializer_list<std::int64_t> sizes)
    : name(std::move(tensor_name)) {
  for (const std::int64_t size : sizes) dims.at(static_cast<std::size_t>(ndim++)) = size;
}

std::int64_t TensorShape::numel() const {
  std::int64_t product = 1;
  for (int i = 0; i < ndim; ++i) product *= dims[static_cast<std::size_t>(i)];
  return product;
}

std::vector<std::string> shape_names() { return {"flat", "gpt2", "parakeet"}; }

std::vector<TensorShape> tensor_list(std::string_view name, std::int64_t flat_numel) {
  if (name == "flat") return {TensorShape("flat", {flat_numel})};
  if (name == "gpt2") return gpt2();
  if (name == "parakeet") return parakeet();
  throw Failure(kExitUsage,
                "--shape: got '" + std::string(name) + "', expected one of " + joined(shape_names()));
}

std::int64_t parse_numel(std::string_view text, std::string_view flag) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 50;  // byte counts stay far from overflow
  const auto bad = [&] {
    return Failure(kExitUsage,
                   std::string(flag) + ": got '" + std::string(text) +
                       "', expected a whole number from 1 to 2^50, such as 67108864, 2^26, 64M or 64Mi");
  };
  const char* const end = text.data() + text.size();
  std::int64_t value = 0;
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || value < 1 || value > kLimit) throw bad();
  std::string_view rest(at, static_cast<std::size_t>(end - at));

  std::int64_t factor = 1, times = 0;
  if (rest.starts_with('^')) {
    const auto [stop, failed] = std::from_chars(at + 1, end, times);
    if (failed != std::errc() || stop != end || times < 0 || times > 62) throw bad();
    factor = std::exchange(value, 1);
  } else if (!rest.empty()) {
    factor = rest.ends_with('i') ? 1024 : 1000;
    if (factor == 1024) rest.remove_suffix(1);
    const std::size_t unit =
        std::string_view("KMG").find(rest.size() == 1 ? (rest == "k" ? 'K' : rest[0]) : '?');
    if (unit == std::string_view::npos) throw bad();
    times = static_cast<std::int64_t>(unit) + 1;
  }
  for (; times > 0; --times) {
    if (value > kLimit / factor) throw bad();
    value *= factor;
  }
  return value;
}

}  // namespace octavo::cli
