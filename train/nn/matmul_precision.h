// The FP8 context of the current thread, which sets the precision of the matmuls in weight_matmul.h. Its type
// is hidden here: the adapter's header has a namespace octavo::torch, which would hide LibTorch's in every
// source file of the trainer.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

namespace octavo_train {

// A std::shared_ptr<octavo::torch::fp8::Context>; null: matmuls are torch's, not FP8.
using MatmulPrecision = std::shared_ptr<void>;
[[nodiscard]] MatmulPrecision product_context();

// Sets this thread's context for the lifetime of the object.
class MatmulPrecisionScope {
 public:
  explicit MatmulPrecisionScope(const MatmulPrecision& context);
  ~MatmulPrecisionScope();
  MatmulPrecisionScope(const MatmulPrecisionScope&) = delete;
  MatmulPrecisionScope& operator=(const MatmulPrecisionScope&) = delete;

 private:
  MatmulPrecision before_;
};

}  // namespace octavo_train
