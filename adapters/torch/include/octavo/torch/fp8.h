// FP8 matmuls for models of LibTorch:
//
//   auto context = octavo::torch::fp8::Context::make();  // Options: format, recipe, ...
//   for (auto& p : model->named_parameters()) context->add(p.key(), p.value());
//   ...
//   {
//     octavo::torch::fp8::Scope scope(context);          // what fp8::matmul in the model uses
//     loss = model->forward(batch);
//   }
//   loss.backward();
//   optimizer.step();
//   context->step_done();                                // new scales; weights are cast again
//
// octavo/fp8.h defines formats and recipes.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/fp8_function.h>

#include <memory>

namespace octavo::torch::fp8 {

// Returns the context of matmul() outside of any scope: one per process, with default options.
inline const std::shared_ptr<Context>& default_context() {
  static const std::shared_ptr<Context> context = Context::make();
  return context;
}

// x [.., in] with w [in, out], or the t() of an [out, in]: [.., out].
inline Tensor matmul(const Tensor& x, const Tensor& w) {
  const std::shared_ptr<Context>& context = current();
  return (context ? context : default_context())->matmul(x, w);
}
inline Tensor matmul_batched(const Tensor& x, const Tensor& w, Shared shared = {}) {
  const std::shared_ptr<Context>& context = current();
  return (context ? context : default_context())->matmul_batched(x, w, shared);
}

}  // namespace octavo::torch::fp8
