// The tensor lists that benchmarks run over: one flat tensor, or the trainable parameters of a model.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::cli {

// A tensor's role in its model; it determines which rows have a gradient at a step (rows.h).
enum class TensorRole : std::uint8_t {
  dense,        // every row, at every step
  tokens,       // a token embedding: the rows of the tokens in the batch
  experts,      // a row is an expert: the experts that got a token
  adapter_in,   // LoRA's A: no row while B is zero
  adapter_out,  // LoRA's B: every row; its weights start at zero
};

struct TensorShape {
  std::string name;
  std::array<std::int64_t, kMaxDims> dims{};
  int ndim = 0;
  TensorRole role = TensorRole::dense;
  std::int64_t row = 0;  // elements per index of the first dimension; 0 for a vector, which has no rows

  TensorShape(std::string tensor_name, std::initializer_list<std::int64_t> sizes);
  [[nodiscard]] std::int64_t numel() const;
};

// Returns the names that tensor_list accepts.
std::vector<std::string> shape_names();

// Returns the tensors of a name. "flat" is one dimension of `flat_numel`, in rows of 1024; shapes.cc
// documents the others. An unknown name is a usage Failure that lists the accepted names.
std::vector<TensorShape> tensor_list(std::string_view name, std::int64_t flat_numel);

}  // namespace octavo::cli
