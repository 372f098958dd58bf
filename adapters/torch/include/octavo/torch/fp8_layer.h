// A layer's casts and matmuls, over the C ABI of FP8, and torch's matmuls for the passes that are not in FP8.
// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/InferenceMode.h>
#include <octavo/torch/fp8_options.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace octavo::torch::fp8 {

using ::torch::Tensor;

// Numbers of passes and operands in the C ABI. A set of passes has a bit for each.
enum : std::uint32_t { kForward = 0, kDgrad = 1, kWgrad = 2 };
constexpr std::uint32_t bit(std::uint32_t pass) { return 1U << pass; }
constexpr std::uint32_t kAllPasses = 7;
enum : std::uint32_t { kX = 0, kW = 1, kDy = 2 };

// The operand or result that all groups of a batched matmul share.
struct Shared {
  bool one_input = false;   // all groups have one x
  bool one_output = false;  // y is the sum over the groups
};

// The shape of a matmul x [tokens, inputs] . w [inputs, outputs], or of one for each group.
struct Shape {
  std::int64_t groups = 1, tokens = 0, inputs = 0, outputs = 0;
  bool batched = false;  // w has a dimension of groups
  Shared shared;
  bool transposed_weight = true;  // in memory w is [groups, inputs, outputs]; else [groups, outputs, inputs]
  ::torch::ScalarType x = ::torch::kFloat32, w = ::torch::kFloat32, y = ::torch::kFloat32;

  std::int64_t inputs_of_x() const { return shared.one_input ? 1 : groups; }    // its groups
  std::int64_t outputs_of_y() const { return shared.one_output ? 1 : groups; }  // its groups
};

// The codes of an operand in both orientations; either may be undefined.
struct Codes {
  Tensor by_rows, transposed;
};

// The states of delayed scaling of a site: those of x, w and dy. Null for other recipes.
struct Delayed {
  float* states = nullptr;
  bool gather = true;  // a cast raises the maximum of the current step
};

// Predictions use tensors without memory (device meta): buffers are created as on a GPU and nothing is
// computed. These functions are called instead of casts and matmuls.
struct Planned {
  std::function<void(double bytes)> cast;  // read and written
  std::function<void(std::uint32_t pass, const Shape& shape)> matmul;
  // The passes in FP8, where they would be chosen by time.
  std::function<std::uint32_t(const Shape& shape)> choose;
};
// This thread's prediction; null: none.
inline const Planned*& planned() {
  thread_local const Planned* current = nullptr;
  return current;
}

class Layer {
 public:
  Layer(const Shape& shape, const Numbers& numbers, const ::torch::Device& device)
      : shape_(shape), device_(device), layer_(native::sized<octavo_fp8_layer>()) {
    layer_.device_kind = native::device_kind(device);
    layer_.device_index = native::device_index(device);
    layer_.format = numbers.format, layer_.recipe = numbers.recipe, layer_.passes = kAllPasses;
    layer_.groups = shape.groups, layer_.tokens = shape.tokens;
    layer_.inputs = shape.inputs, layer_.outputs = shape.outputs;
    layer_.one_input = shape.shared.one_input, layer_.one_output = shape.shared.one_output;
    layer_.transposed_weight = shape.transposed_weight;
    layer_.history = numbers.history;
    const ::torch::ScalarType types[] = {shape.x, shape.w, shape.y};
    for (std::size_t i = 0; i < 3; ++i)
      layer_.dtypes[i] = static_cast<std::uint32_t>(native::dtype_number(types[i]));
  }

  const Shape& shape() const { return shape_; }
  const ::torch::Device& device() const { return device_; }

  std::int64_t workspace_bytes() const { return sizes_of(layer_).workspace; }

  std::string why_not() const {
    const char* const why = octavo_fp8_why_not(&layer_);
    TORCH_CHECK(why != nullptr, "octavo::torch::fp8: ", octavo_last_error());
    return why;
  }

  // Casts an operand for these passes. Allocates the buffers that are undefined.
  void cast(std::uint32_t operand, const Tensor& from, std::uint32_t passes, const Delayed& state,
            Codes& codes) const {
    octavo_fp8_layer layer = layer_;
    layer.passes = passes;
    const octavo_fp8_sizes sizes = sizes_of(layer);
    octavo_fp8_run_args args = native::sized<octavo_fp8_run_args>();
    args.from[operand] = from.const_data_ptr();
    args.codes[operand] = buffer(sizes.codes[operand], codes.by_rows);
    args.transposed[operand] = buffer(sizes.transposed[operand], codes.transposed);
    args.states = state.states, args.gather = state.gather;
    if (device_.is_meta()) {
      if (planned() != nullptr)
        planned()->cast(static_cast<double>(from.nbytes()) + bytes_of(codes.by_rows) +
                        bytes_of(codes.transposed));
      return;
    }
    run(layer, args);
  }

  // Allocates the result of a pass with the wanted sizes; as [groups, rows, columns] if its rows are padded,
  // or if no sizes are given.
  Tensor result(std::uint32_t pass, at::IntArrayRef wanted = {}) const {
    const octavo_fp8_sizes all = sizes_of(layer_);
    const at::IntArrayRef sizes = pass == kForward ? all.y : pass == kDgrad ? all.dx : all.dw;
    const bool fits = !wanted.empty() && c10::multiply_integers(wanted) == c10::multiply_integers(sizes);
    return ::torch::empty(fits ? wanted : sizes, ::torch::TensorOptions()
                                                     .dtype(pass == kForward ? shape_.y
                                                            : pass == kDgrad ? shape_.x
                                                                             : shape_.w)
                                                     .device(device_));
  }

  // Computes the result of a pass. Codes that it does not read may be undefined.
  void matmul(std::uint32_t pass, const Codes& x, const Codes& w, const Codes& dy, const Tensor& to,
              void* workspace) const {
    if (device_.is_meta()) {
      if (planned() != nullptr) planned()->matmul(pass, shape_);
      return;
    }
    octavo_fp8_run_args args = native::sized<octavo_fp8_run_args>();
    const Codes* const operands[] = {&x, &w, &dy};
    for (std::size_t i = 0; i < 3; ++i) {
      args.codes[i] = data(operands[i]->by_rows);
      args.transposed[i] = data(operands[i]->transposed);
    }
    args.to[pass] = to.data_ptr(), args.workspace = workspace;
    run(layer_, args);
  }

 private:
  // Torch aligns memory to fewer bytes on the CPU.
  static constexpr std::int64_t kAlignment = 256;
  static double bytes_of(const Tensor& codes) {
    return codes.defined() ? static_cast<double>(codes.nbytes()) : 0.0;
  }
  static void* data(const Tensor& codes) {
    return codes.defined() ? native::aligned(codes.data_ptr(), kAlignment) : nullptr;
  }

  static octavo_fp8_sizes sizes_of(const octavo_fp8_layer& layer) {
    octavo_fp8_sizes sizes = native::sized<octavo_fp8_sizes>();
    native::check(octavo_fp8_layer_sizes(&layer, &sizes), "octavo::torch::fp8: ");
    return sizes;
  }
  void run(const octavo_fp8_layer& layer, octavo_fp8_run_args& args) const {
    args.stream = native::handle_of(native::current_stream(device_));
    native::check(octavo_fp8_run(&layer, &args), "octavo::torch::fp8: ");
  }

  void* buffer(std::int64_t bytes, Tensor& codes) const {
    if (bytes == 0) {
      codes = Tensor();
      return nullptr;
    }
    if (!codes.defined()) {
      const c10::InferenceMode lasting(false);  // a graph may save the codes that an evaluation has cast
      codes = native::bytes(bytes + (device_.is_cpu() ? kAlignment : 0), device_);
    }
    return data(codes);
  }

  Shape shape_;
  ::torch::Device device_;
  octavo_fp8_layer layer_;
};

// --- torch's matmuls ---

namespace plain {

// Returns the tensor expanded to all groups.
inline Tensor grouped(const Tensor& t, const Shape& shape) {
  return t.size(0) == shape.groups ? t : t.expand({shape.groups, t.size(1), t.size(2)});
}
inline Tensor multiply(const Tensor& a, const Tensor& b, const Shape& shape, bool sum) {
  if (shape.groups == 1) return a[0].mm(b[0]).unsqueeze(0);
  const Tensor all = grouped(a, shape).bmm(grouped(b, shape));
  // The dtype is given, because autocast would sum to fp32.
  return sum ? all.sum(0, /*keepdim=*/true, all.scalar_type()) : all;
}

// Operands are [groups, rows, columns] in the dtype of the matmul; w is a view [groups, inputs, outputs].
inline Tensor forward(const Tensor& x, const Tensor& w, const Shape& shape) {
  return multiply(x, w, shape, shape.shared.one_output);
}
inline Tensor dgrad(const Tensor& dy, const Tensor& w, const Shape& shape) {
  return multiply(dy, w.mT(), shape, shape.shared.one_input);
}
// The result has the layout of w.
inline Tensor wgrad(const Tensor& dy, const Tensor& x, const Shape& shape) {
  return shape.transposed_weight ? multiply(x.mT(), dy, shape, false) : multiply(dy.mT(), x, shape, false);
}

}  // namespace plain

}  // namespace octavo::torch::fp8
