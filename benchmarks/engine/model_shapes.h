// The tensor lists of the models that benchmarks run over; model_shapes.cc documents each.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/shapes.h"

namespace octavo::cli {

std::vector<TensorShape> gpt2_tensors();
std::vector<TensorShape> gpt2_embedding_tensors();
std::vector<TensorShape> parakeet_tensors();
std::vector<TensorShape> moe_tensors();
std::vector<TensorShape> lora_tensors();
std::vector<TensorShape> vit_g_tensors();

}  // namespace octavo::cli
