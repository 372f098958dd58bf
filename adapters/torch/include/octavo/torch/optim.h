// AdamW, Adam, SGD and Lion for LibTorch, as replacements of those in torch::optim: low-bit states, master
// bits for bf16 parameters, clipping inside the step. docs/guides/libtorch.md shows their use.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

namespace octavo::torch {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const std::vector<ParamGroup>& groups, AdamWOptions defaults = {})
      : Optimizer("AdamW", "adamw", groups, std::make_unique<AdamWOptions>(std::move(defaults))) {}
  explicit AdamW(std::vector<Tensor> params, AdamWOptions defaults = {})
      : AdamW(std::vector<ParamGroup>{ParamGroup(std::move(params))}, std::move(defaults)) {}
};

class Adam : public Optimizer {
 public:
  explicit Adam(const std::vector<ParamGroup>& groups, AdamOptions defaults = {})
      : Optimizer("Adam", "adam", groups, std::make_unique<AdamOptions>(std::move(defaults))) {}
  explicit Adam(std::vector<Tensor> params, AdamOptions defaults = {})
      : Adam(std::vector<ParamGroup>{ParamGroup(std::move(params))}, std::move(defaults)) {}
};

class SGD : public Optimizer {
 public:
  explicit SGD(const std::vector<ParamGroup>& groups, SGDOptions defaults = {})
      : Optimizer("SGD", "sgd", groups, std::make_unique<SGDOptions>(std::move(defaults))) {}
  explicit SGD(std::vector<Tensor> params, SGDOptions defaults = {})
      : SGD(std::vector<ParamGroup>{ParamGroup(std::move(params))}, std::move(defaults)) {}
};

class Lion : public Optimizer {
 public:
  explicit Lion(const std::vector<ParamGroup>& groups, LionOptions defaults = {})
      : Optimizer("Lion", "lion", groups, std::make_unique<LionOptions>(std::move(defaults))) {}
  explicit Lion(std::vector<Tensor> params, LionOptions defaults = {})
      : Lion(std::vector<ParamGroup>{ParamGroup(std::move(params))}, std::move(defaults)) {}
};

}  // namespace octavo::torch
