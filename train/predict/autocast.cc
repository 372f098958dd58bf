// SPDX-License-Identifier: MIT
#include "train/predict/autocast.h"

#include "train/nn/fake.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <map>
#include <string>

namespace octavo_train {
namespace {

using ::torch::Tensor;

std::map<const c10::TensorImpl*, Tensor>& casts() {
  static std::map<const c10::TensorImpl*, Tensor> kept;
  return kept;
}

bool is_cast(const Tensor& x) {
  return x.defined() && x.is_meta() && x.is_floating_point() && x.scalar_type() != ::torch::kDouble;
}

// Casts x to `type`. All uses of a weight in a forward pass share one low-precision copy.
Tensor cast_to(const Tensor& x, ::torch::ScalarType type) {
  if (!is_cast(x) || x.scalar_type() == type) return x;
  const bool kept = x.scalar_type() == ::torch::kFloat32 && x.is_leaf() && x.requires_grad() &&
                    !x.is_view() && type != ::torch::kFloat32;
  if (!kept) return x.to(type);
  Tensor& found = casts()[x.unsafeGetTensorImpl()];
  if (!found.defined()) found = x.to(type);
  return found;
}

template <class F>
void each_tensor(::torch::jit::Stack& stack, std::size_t first, const F& f) {
  for (std::size_t i = first; i < stack.size(); ++i) {
    if (stack[i].isTensor()) stack[i] = f(stack[i].toTensor());
    if (stack[i].isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : stack[i].toTensorVector()) list.push_back(f(each));
      stack[i] = list;
    }
  }
}

void call_with(const c10::OperatorHandle& op, ::torch::jit::Stack* stack, ::torch::ScalarType type) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  each_tensor(*stack, stack->size() - op.schema().arguments().size(),
              [&](const Tensor& x) { return cast_to(x, type); });
  op.callBoxed(stack);
}

void narrow(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, ::torch::jit::Stack* stack) {
  call_with(op, stack, at::autocast::get_autocast_dtype(octavo::autocast_type(c10::DeviceType::Meta)));
}
void wide(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, ::torch::jit::Stack* stack) {
  call_with(op, stack, ::torch::kFloat32);
}

// Handles the operators of the list that have an argument `dtype`: the result is fp32 if none is given.
void wide_result(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, ::torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack->size() - arguments.size();
  const bool casts = (*stack)[first].isTensor() && is_cast((*stack)[first].toTensor());
  for (std::size_t i = 0; casts && i < arguments.size(); ++i)
    if (arguments[i].name() == "dtype" && (*stack)[first + i].isNone())
      (*stack)[first + i] = static_cast<std::int64_t>(::torch::kFloat32);
  op.callBoxed(stack);
}

void widest(const c10::OperatorHandle& op, c10::DispatchKeySet keys, ::torch::jit::Stack* stack) {
  bool fp32 = false;
  const std::size_t first = stack->size() - op.schema().arguments().size();
  for (std::size_t i = first; i < stack->size(); ++i)
    fp32 = fp32 || ((*stack)[i].isTensor() && is_cast((*stack)[i].toTensor()) &&
                    (*stack)[i].toTensor().scalar_type() == ::torch::kFloat32);
  fp32 ? wide(op, keys, stack) : narrow(op, keys, stack);
}

std::string named(const char* op) { return op; }
std::string named(const char* op, const char* overload) { return std::string(op) + "." + overload; }

}  // namespace

void forget_fake_casts() { casts().clear(); }

// The lists of operators are LibTorch's macros, which need macros as arguments.
#define OCTAVO_NAMED(op, ...) named(#op __VA_OPT__(, #__VA_ARGS__))
#define OCTAVO_NARROW(...) \
  library.impl(OCTAVO_NAMED(__VA_ARGS__).c_str(), ::torch::CppFunction::makeFromBoxedFunction<&narrow>());
#define OCTAVO_WIDE(...) \
  library.impl(OCTAVO_NAMED(__VA_ARGS__).c_str(), ::torch::CppFunction::makeFromBoxedFunction<&wide>());
#define OCTAVO_WIDE_RESULT(...)                   \
  library.impl(OCTAVO_NAMED(__VA_ARGS__).c_str(), \
               ::torch::CppFunction::makeFromBoxedFunction<&wide_result>());
#define OCTAVO_WIDEST(...) \
  library.impl(OCTAVO_NAMED(__VA_ARGS__).c_str(), ::torch::CppFunction::makeFromBoxedFunction<&widest>());

void add_fake_autocast(::torch::Library& library) {
  AT_FORALL_LOWER_PRECISION_FP(OCTAVO_NARROW)
  AT_FORALL_FP32(OCTAVO_WIDE)
  AT_FORALL_FP32_SET_OPT_DTYPE(OCTAVO_WIDE_RESULT)
  AT_FORALL_PROMOTE(OCTAVO_WIDEST)
}

#undef OCTAVO_WIDEST
#undef OCTAVO_WIDE_RESULT
#undef OCTAVO_WIDE
#undef OCTAVO_NARROW
#undef OCTAVO_NAMED

}  // namespace octavo_train
