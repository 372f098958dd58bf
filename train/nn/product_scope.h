// What the door for products (project.h) takes its precision from: the context of products in FP8 that this
// thread has, or none. Its type is hidden here: the adapter's header has a namespace octavo::torch, which
// would hide LibTorch's in every source of the trainer.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

namespace octavo::train {

// A std::shared_ptr<octavo::torch::fp8::Context>; null: products are plain.
using ProductContext = std::shared_ptr<void>;
[[nodiscard]] ProductContext product_context();

// Sets it for a scope of this thread.
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
