// SPDX-License-Identifier: MIT
#include "train/predict/operators.h"

#include "train/nn/fake.h"

#include <ATen/ExpandUtils.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using octavo::plan::Kernel;
using octavo::plan::Precision;
using octavo::plan::Work;
using torch::Tensor;

// --- shapes of results ---

using Arguments = std::span<const c10::IValue>;
using Results = std::vector<c10::IValue>;
using Rule = std::function<Results(Arguments)>;

Tensor like(const Tensor& x) { return torch::empty_like(x); }

Results same_as_first(Arguments in) { return {like(in[0].toTensor())}; }
Results same_as_second(Arguments in) { return {like(in[1].toTensor())}; }
Results first_itself(Arguments in) { return {in[0]}; }
Results truth_of_first(Arguments in) {
  return {torch::empty_like(in[0].toTensor(), torch::TensorOptions(torch::kBool))};
}

// The further results are mean and 1 / deviation of each row, in fp32 as on a GPU.
Results layer_norm(Arguments in) {
  const Tensor x = in[0].toTensor();
  std::vector<std::int64_t> rows(x.sizes().begin(), x.sizes().end());
  const auto normed = in[1].toIntVector().size();
  for (std::size_t i = rows.size() - normed; i < rows.size(); ++i) rows[i] = 1;
  const auto floats = x.options().dtype(torch::kFloat32);
  return {like(x), torch::empty(rows, floats), torch::empty(rows, floats)};
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
  return {torch::empty({in[2].toInt(), grad.size(-1)}, grad.options())};
}

Results where(Arguments in) {
  const Tensor mask = in[0].toTensor(), a = in[1].toTensor(), b = in[2].toTensor();
  const auto sizes = at::infer_size(mask.sizes(), at::infer_size(a.sizes(), b.sizes()));
  return {torch::empty(sizes, mask.options().dtype(at::result_type(a, b)))};
}

Results index_select(Arguments in) {
  const Tensor x = in[0].toTensor();
  std::vector<std::int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes[static_cast<std::size_t>(at::maybe_wrap_dim(in[1].toInt(), x.dim()))] = in[2].toTensor().numel();
  return {torch::empty(sizes, x.options())};
}

// The further results are mean and 1 / deviation of each channel, in fp32.
Results batch_norm(Arguments in) {
  const Tensor x = in[0].toTensor();
  const auto floats = x.options().dtype(torch::kFloat32);
  const std::int64_t channels = in[5].toBool() ? x.size(1) : 0;
  return {like(x), torch::empty({channels}, floats), torch::empty({channels}, floats)};
}
Results batch_norm_backward(Arguments in) {
  const auto wanted = in[9].toBoolList();
  const Tensor x = in[1].toTensor();
  const auto made = [&](std::size_t i) {
    return wanted[i] ? torch::empty({x.size(1)}, x.options().dtype(torch::kFloat32)) : Tensor();
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
  const Tensor out = torch::empty(sizes, x.options());
  return {in_two_layouts(out)};
}
// Arguments: gradient, input, weight, the bias's sizes, …, a mask of the three gradients to compute.
Results convolution_backward(Arguments in) {
  const auto wanted = in[10].toBoolList();
  const Tensor grad = in[0].toTensor();
  return {wanted[0] ? in_two_layouts(like(in[1].toTensor())) : Tensor(),
          wanted[1] ? like(in[2].toTensor()) : Tensor(),
          wanted[2] ? torch::empty({grad.size(1)}, grad.options()) : Tensor()};
}

// Arguments: log probabilities [frames, batch, tokens], targets, lengths of both. Results: losses, and the
// lattice of each.
Results ctc_loss(Arguments in) {
  const Tensor x = in[0].toTensor();
  const std::vector<std::int64_t> labels = in[3].toIntVector();
  const std::int64_t longest = labels.empty() ? 0 : *std::ranges::max_element(labels);
  return {torch::empty({x.size(1)}, x.options()),
          torch::empty({x.size(1), x.size(0), 2 * longest + 1}, x.options())};
}

// FFT of real numbers. If it is one-sided, the last of the dimensions has half the spectrum, because the
// other half mirrors it.
Results fft_of_real(Arguments in) {
  const Tensor x = in[0].toTensor();
  std::vector<std::int64_t> sizes(x.sizes().begin(), x.sizes().end());
  std::int64_t& last =
      sizes[static_cast<std::size_t>(at::maybe_wrap_dim(in[1].toIntVector().back(), x.dim()))];
  if (in[3].toBool()) last = last / 2 + 1;
  return {torch::empty(sizes, x.options().dtype(c10::toComplexType(x.scalar_type())))};
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

// --- costs ---

// Operators that launch nothing, by their names without overloads.
constexpr std::array kFree = std::to_array<std::string_view>({"aten::_local_scalar_dense",
                                                              "aten::_reshape_alias",
                                                              "aten::_unsafe_view",
                                                              "aten::alias",
                                                              "aten::as_strided",
                                                              "aten::detach",
                                                              "aten::diagonal",
                                                              "aten::empty",
                                                              "aten::empty_like",
                                                              "aten::empty_strided",
                                                              "aten::expand",
                                                              "aten::lift_fresh",
                                                              "aten::movedim",
                                                              "aten::narrow",
                                                              "aten::new_empty",
                                                              "aten::permute",
                                                              "aten::resize_",
                                                              "aten::select",
                                                              "aten::set_",
                                                              "aten::slice",
                                                              "aten::split",
                                                              "aten::split_with_sizes",
                                                              "aten::squeeze",
                                                              "aten::t",
                                                              "aten::transpose",
                                                              "aten::unbind",
                                                              "aten::unfold",
                                                              "aten::unsqueeze",
                                                              "aten::view",
                                                              "aten::view_as",
                                                              "aten::new_empty_strided"});

// Returns the bytes of a tensor that are read from or written to memory. Elements that are not contiguous
// count as complete sectors, and expanded elements count once.
double bytes_of(const Tensor& tensor) {
  constexpr std::int64_t kSector = 32;
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  std::int64_t elements = 1, nearest = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 1 || tensor.stride(i) == 0) continue;
    elements *= tensor.size(i);
    nearest = nearest == 0 ? tensor.stride(i) : std::min(nearest, tensor.stride(i));
  }
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  return static_cast<double>(elements) *
         static_cast<double>(std::min(std::max<std::int64_t>(nearest, 1) * size, std::max(kSector, size)));
}

double bytes_of(std::span<const c10::IValue> values) {
  double bytes = 0;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) bytes += bytes_of(value.toTensor());
    if (value.isTensorList())
      for (const Tensor& each : value.toTensorVector()) bytes += bytes_of(each);
  }
  return bytes;
}

const Tensor& tensor_at(std::span<const c10::IValue> values, std::size_t i) { return values[i].toTensor(); }

// The share of a copy's speed that operators reach on an H200, if it is far from 1. Measured next to a copy
// of the same bytes; benchmarks/records/2026-11-18 has the run.
constexpr double kBroadcast = 0.37;  // elementwise over tensors of different shapes or orders
constexpr double kApart = 0.8;       // elementwise over elements that are not neighbours
constexpr double kWidening = 0.5;    // from 2 bytes to 4
struct Share {
  std::string_view name;
  double bandwidth;
};
constexpr std::array kShares = std::to_array<Share>({{"aten::native_layer_norm", 0.3},
                                                     {"aten::native_layer_norm_backward", 0.12},
                                                     {"aten::tril", 0.4},
                                                     {"aten::cat", 0.7},
                                                     {"aten::_softmax", 0.6},
                                                     {"aten::_log_softmax", 0.6}});

double elementwise_share(std::span<const c10::IValue> inputs, const Tensor& out) {
  bool apart = !out.is_non_overlapping_and_dense(), broadcast = false, widening = false;
  for (const c10::IValue& value : inputs) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().numel() <= 1) continue;
    const Tensor& x = value.toTensor();
    const bool same = x.sizes() == out.sizes();
    apart = apart || (same && !x.is_non_overlapping_and_dense());
    broadcast = broadcast || !same || x.strides() != out.strides();
    widening = widening || (same && x.element_size() < out.element_size());
  }
  // If elements are apart, complete sectors are counted. They reach this rate whatever else applies.
  return apart ? kApart : broadcast ? kBroadcast : widening ? kWidening : 1;
}

double share_of(const std::string& name, std::span<const c10::IValue> inputs,
                std::span<const c10::IValue> outputs) {
  for (const Share& each : kShares)
    if (each.name == name) return each.bandwidth;
  // Reductions and gathers read in their own order, and reach a copy's speed.
  if (outputs.size() != 1 || !outputs[0].isTensor() || !outputs[0].toTensor().defined()) return 1;
  const Tensor& out = outputs[0].toTensor();
  const bool elementwise = std::ranges::any_of(inputs, [&](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().sizes() == out.sizes();
  });
  return elementwise ? elementwise_share(inputs, out) : 1;
}

Kernel product(const Tensor& a, const Tensor& b) {
  Kernel out;
  out.work = Work::product;
  out.precision = precision_of(a.scalar_type());
  out.batch = a.dim() == 3 ? a.size(0) : 1;
  out.rows = a.size(-2);
  out.inner = a.size(-1);
  out.columns = b.size(-1);
  // Only the contiguous dimension must be aligned. If the inner dimension is contiguous
  // in neither factor (a sum over the rows of both), any length is as fast as an aligned one.
  if (a.stride(-1) != 1 && b.stride(-2) != 1) out.inner = (out.inner + 7) / 8 * 8;
  return out;
}

// Returns a convolution as a matmul over the elements of a window, for each group.
Kernel convolution_product(const Tensor& x, const Tensor& weight, const Tensor& out, std::int64_t groups) {
  Kernel kernel;
  kernel.work = Work::product;
  kernel.precision = precision_of(x.scalar_type());
  kernel.batch = groups;
  kernel.rows = out.numel() / std::max<std::int64_t>(out.size(1), 1);
  kernel.columns = weight.size(0) / groups;
  kernel.inner = weight.numel() / std::max<std::int64_t>(weight.size(0), 1);
  return kernel;
}

// --- temporary memory of sums ---

constexpr std::int64_t kThreads = 512;  // of a block whose threads load one column each
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kFewValues = 16, kMany = 256;  // values that a thread adds up

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t power_below(std::int64_t x, std::int64_t most) {
  return x < most ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(x))) : most;
}

std::int64_t threads_of_a_multiprocessor(const octavo::plan::Gpu& gpu) {
  const int version = 10 * gpu.compute_major + gpu.compute_minor;
  if (version == 75) return 1024;
  return version == 86 || version == 89 || version >= 120 ? 1536 : 2048;
}

}  // namespace

bool apply_shape_rule(const std::string& name, torch::jit::Stack& stack, std::size_t arguments) {
  const auto found = rules().find(name);
  if (found == rules().end()) return false;
  const std::size_t first = stack.size() - arguments;
  Results results = found->second({stack.data() + first, arguments});
  stack.resize(first);
  for (c10::IValue& each : results) stack.push_back(std::move(each));
  return true;
}

Precision precision_of(torch::ScalarType type) {
  if (type == torch::kBFloat16) return Precision::bf16;
  if (type == torch::kFloat16) return Precision::fp16;
  return Precision::fp32;
}

std::optional<Kernel> cost_of(const std::string& name, std::span<const c10::IValue> inputs,
                              std::span<const c10::IValue> outputs) {
  if (std::ranges::find(kFree, name) != kFree.end()) return std::nullopt;
  std::optional<Kernel> out;
  if (name == "aten::mm" || name == "aten::bmm") out = product(tensor_at(inputs, 0), tensor_at(inputs, 1));
  if (name == "aten::addmm" || name == "aten::baddbmm")
    out = product(tensor_at(inputs, 1), tensor_at(inputs, 2));
  if (name == "aten::convolution")
    out = convolution_product(tensor_at(inputs, 0), tensor_at(inputs, 1), tensor_at(outputs, 0),
                              inputs[8].toInt());
  if (name == "aten::convolution_backward") {  // twice: for the input and for the weight
    out = convolution_product(tensor_at(inputs, 1), tensor_at(inputs, 2), tensor_at(inputs, 0),
                              inputs[9].toInt());
    out->rows *= 2;
  }
  if (!out) out.emplace();
  // In-place operators write what they read, so their tensor is among the inputs and the outputs.
  out->bytes = bytes_of(inputs) + bytes_of(outputs);
  if (out->work == Work::stream) out->bandwidth = share_of(name, inputs, outputs);
  if (out->work == Work::stream && out->bytes == 0) return std::nullopt;
  return out;
}

std::int64_t row_sum_bytes(const octavo::plan::Gpu& gpu, std::int64_t rows, std::int64_t columns) {
  if (rows < 1 || columns < 1) return 0;
  // A thread sums `vector` neighbouring columns, which it loads with one instruction.
  const std::int64_t vector = columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;
  const std::int64_t lanes = columns / vector, most = kThreads / vector;
  const std::int64_t high = power_below(rows, most);
  std::int64_t width = std::min(power_below(lanes, most), kWarp);
  const std::int64_t height = std::min(high, most / width);
  width = std::min(power_below(lanes, most), most / height);
  // If there are enough rows, several threads of a block share the rows of a column.
  if (rows < height * kFewValues && rows < kMany) return 0;
  const std::int64_t values = ceil_div(rows, height), blocks = ceil_div(lanes, width);
  const std::int64_t room = gpu.multiprocessors * (threads_of_a_multiprocessor(gpu) / (width * height));
  if (values < kMany || blocks > room) return 0;
  // Several blocks share them too, and each block writes its partial sums.
  const std::int64_t together =
      std::max(std::min(ceil_div(room, blocks), ceil_div(values, kFewValues)), ceil_div(values, kMany));
  if (together <= 1) return 0;
  return 4 * columns * together * width * vector;
}

}  // namespace octavo_train
