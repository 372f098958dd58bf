// The tensor lists that benchmarks run over: one flat tensor, or the trainable parameters of a known model.
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

struct TensorShape {
  std::string name;
  std::array<std::int64_t, kMaxDims> dims{};
  int ndim = 0;

  TensorShape(std::string tensor_name, std::initializer_list<std::int64_t> sizes);
  [[nodiscard]] std::int64_t numel() const;
};

// Names that tensor_list takes.
std::vector<std::string> shape_names();

// "flat": one dimension of `flat_numel`. "gpt2", "parakeet": as documented in shapes.cc.
// An unknown name is a usage Failure that lists the known ones.
std::vector<TensorShape> tensor_list(std::string_view name, std::int64_t flat_numel);

// 67108864, 2^26, 64M (K or k, M, G: powers of 1000), 64Mi (Ki, Mi, Gi: powers of 1024); 1 to 2^50.
// Anything else is a usage Failure that names the flag.
std::int64_t parse_numel(std::string_view text, std::string_view flag = "--numel");

}  // namespace octavo::cli
