// SPDX-License-Identifier: MIT
#include "train/predict/shapes.h"

#include "train/nn/fake.h"

#include <ATen/ExpandUtils.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace octavo_train {
namespace {

using ::torch::Tensor;
using Arguments = std::span<const c10::IValue>;
using Results = std::vector<c10::IValue>;
using Rule = std::function<Results(Arguments)>;

Tensor like(const Tensor& x) { return ::torch::empty_like(x); }

Results same_as_first(Arguments in) { return {like(in[0].toTensor())}; }
Results same_as_second(Arguments in) { return {like(in[1].toTensor())}; }
Results first_itself(Arguments in) { return {in[0]}; }
Results truth_of_first(Arguments in) {
  return {::torch::empty_like(in[0].toTensor(), ::torch::TensorOptions(::torch::kBool))};
}

// The further results are mean and 1 / deviation of each row, in fp32 as on a GPU.
Results layer_norm(Arguments in) {
  const Tensor x = in[0].toTensor();
  std::vector<std::int64_t> rows(x.sizes().begin(), x.sizes().end());
  const auto normed = in[1].toIntVector().size();
  for (std::size_t i = rows.size() - normed; i < rows.size(); ++i) rows[i] = 1;
  const auto floats = x.options().dtype(::torch::kFloat32);
  return {like(x), ::torch::empty(rows, floats), ::torch::empty(rows, floats)};
}
Results layer_norm_backward(Arguments in) {
  const auto wanted = in[7].toBoolList();
  const auto made = [&](std::size_t i, const c10::IValue& of) {
    return wanted[i] && of.isTensor() && of.toTensor().defined() ? like(of.toTensor()) : Tensor();
  };
  return {made(0, in[1]), made(1, in[5]), made(2, in[6])};
}

Results embedding_backward(Arguments in) {
  const Tensor grad = in[0].toTensor();
  return {::torch::empty({in[2].toInt(), grad.size(-1)}, grad.options())};
}

Results where(Arguments in) {
  const Tensor mask = in[0].toTensor(), a = in[1].toTensor(), b = in[2].toTensor();
  const auto sizes = at::infer_size(mask.sizes(), at::infer_size(a.sizes(), b.sizes()));
  return {::torch::empty(sizes, mask.options().dtype(at::result_type(a, b)))};
}

Results index_select(Arguments in) {
  const Tensor x = in[0].toTensor();
  std::vector<std::int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes[static_cast<std::size_t>(at::maybe_wrap_dim(in[1].toInt(), x.dim()))] = in[2].toTensor().numel();
  return {::torch::empty(sizes, x.options())};
}

// The further results are mean and 1 / deviation of each channel, in fp32.
Results batch_norm(Arguments in) {
  const Tensor x = in[0].toTensor();
  const auto floats = x.options().dtype(::torch::kFloat32);
  const std::int64_t channels = in[5].toBool() ? x.size(1) : 0;
  return {like(x), ::torch::empty({channels}, floats), ::torch::empty({channels}, floats)};
}
Results batch_norm_backward(Arguments in) {
  const auto wanted = in[9].toBoolList();
  const Tensor x = in[1].toTensor();
  const auto made = [&](std::size_t i) {
    return wanted[i] ? ::torch::empty({x.size(1)}, x.options().dtype(::torch::kFloat32)) : Tensor();
  };
  return {wanted[0] ? like(x) : Tensor(), made(1), made(2)};
}

// Allocates the result twice for a moment on the CPU, because oneDNN computes in its own layout and copies
// the result.
Tensor in_two_layouts(const Tensor& out) {
  const Tensor other = is_fake_cpu(out) ? like(out) : Tensor();
  return out;
}

// Arguments: input, weight, bias, stride, padding, dilation, transposed, output padding, groups.
Results convolution(Arguments in) {
  const Tensor x = in[0].toTensor(), weight = in[1].toTensor();
  TORCH_CHECK(!in[6].toBool(), "a plan cannot run a transposed convolution");
  const auto stride = in[3].toIntVector(), padding = in[4].toIntVector(), dilation = in[5].toIntVector();
  std::vector<std::int64_t> sizes = {x.size(0), weight.size(0)};
  for (std::int64_t i = 2; i < x.dim(); ++i) {
    const auto at = [&](const std::vector<std::int64_t>& list) {
      return list.size() == 1 ? list[0] : list[static_cast<std::size_t>(i - 2)];
    };
    sizes.push_back((x.size(i) + 2 * at(padding) - at(dilation) * (weight.size(i) - 1) - 1) / at(stride) + 1);
  }
  const Tensor out = ::torch::empty(sizes, x.options());
  return {in_two_layouts(out)};
}
// Arguments: gradient, input, weight, the bias's sizes, …, a mask of the three gradients to compute.
Results convolution_backward(Arguments in) {
  const auto wanted = in[10].toBoolList();
  const Tensor grad = in[0].toTensor();
  return {wanted[0] ? in_two_layouts(like(in[1].toTensor())) : Tensor(),
          wanted[1] ? like(in[2].toTensor()) : Tensor(),
          wanted[2] ? ::torch::empty({grad.size(1)}, grad.options()) : Tensor()};
}

// Arguments: log probabilities [frames, batch, tokens], targets, lengths of both. Results: losses, and the
// lattice of each.
Results ctc_loss(Arguments in) {
  const Tensor x = in[0].toTensor();
  const std::vector<std::int64_t> labels = in[3].toIntVector();
  const std::int64_t longest = labels.empty() ? 0 : *std::ranges::max_element(labels);
  return {::torch::empty({x.size(1)}, x.options()),
          ::torch::empty({x.size(1), x.size(0), 2 * longest + 1}, x.options())};
}

// FFT of real numbers. If it is one-sided, the last of the dimensions has half the spectrum, because the
// other half mirrors it.
Results fft_of_real(Arguments in) {
  const Tensor x = in[0].toTensor();
  std::vector<std::int64_t> sizes(x.sizes().begin(), x.sizes().end());
  std::int64_t& last =
      sizes[static_cast<std::size_t>(at::maybe_wrap_dim(in[1].toIntVector().back(), x.dim()))];
  if (in[3].toBool()) last = last / 2 + 1;
  return {::torch::empty(sizes, x.options().dtype(c10::toComplexType(x.scalar_type())))};
}

const std::map<std::string, Rule>& rules() {
  static const std::map<std::string, Rule> all = {
      {"aten::relu", same_as_first},
      {"aten::relu_", first_itself},
      {"aten::glu_backward", same_as_second},
      {"aten::_ctc_loss", ctc_loss},
      {"aten::_fft_r2c", fft_of_real},
      {"aten::_ctc_loss_backward", same_as_second},
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::index_select", index_select},
      {"aten::logical_not", truth_of_first},
      {"aten::where", where},
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::embedding_dense_backward", embedding_backward},
  };
  return all;
}

}  // namespace

bool apply_shape_rule(const std::string& name, ::torch::jit::Stack& stack, std::size_t arguments) {
  const auto found = rules().find(name);
  if (found == rules().end()) return false;
  const std::size_t first = stack.size() - arguments;
  Results results = found->second({stack.data() + first, arguments});
  stack.resize(first);
  for (c10::IValue& each : results) stack.push_back(std::move(each));
  return true;
}

}  // namespace octavo_train
