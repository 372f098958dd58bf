// The FP8 context of the current thread, which sets the precision of the matmuls in project.h. Its type is
// hidden here: the adapter's header has a namespace octavo::torch, which would hide LibTorch's in every
// source file of the trainer.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

namespace octavo::train {

// A std::shared_ptr<octavo::torch::fp8::Context>; null: matmuls are torch's, not FP8.
using ProductContext = std::shared_ptr<void>;
[[nodiscard]] ProductContext product_context();

// Sets this thread's context for the lifetime of the object.
class ProductScope {
 public:
  explicit ProductScope(const ProductContext& context);
  ~ProductScope();
  ProductScope(const ProductScope&) = delete;
  ProductScope& operator=(const ProductScope&) = delete;

 private:
  ProductContext before_;
};

}  // namespace octavo::train
