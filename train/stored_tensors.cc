// SPDX-License-Identifier: MIT
#include "stored_tensors.h"

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace octavo::train {
namespace {

constexpr std::array<std::pair<torch::ScalarType, const char*>, 10> kStoredTypes = {
    {{torch::kFloat32, "F32"},
     {torch::kBFloat16, "BF16"},
     {torch::kFloat16, "F16"},
     {torch::kUInt8, "U8"},
     {torch::kInt8, "I8"},
     {torch::kInt16, "I16"},
     {torch::kInt32, "I32"},
     {torch::kInt64, "I64"},
     {torch::kFloat64, "F64"},
     {torch::kBool, "BOOL"}}};

}  // namespace

std::string stored_dtype(torch::ScalarType type) {
  for (const auto& [each, text] : kStoredTypes) {
    if (each == type) return text;
  }
  TORCH_CHECK(false, "tensors of ", c10::toString(type), " cannot be saved");
}

std::optional<torch::ScalarType> scalar_type_of(std::string_view dtype) {
  for (const auto& [each, text] : kStoredTypes) {
    if (dtype == text) return each;
  }
  return std::nullopt;
}

std::string tensor_text(std::string_view dtype, at::IntArrayRef shape) {
  std::string out = std::string(dtype) + " [";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

torch::Tensor view_of_stored(const StoredTensor& stored) {
  const auto type = scalar_type_of(stored.dtype);
  if (!type) return {};
  const torch::TensorOptions options(*type);
  if (reinterpret_cast<std::uintptr_t>(stored.bytes.data()) % element_size(stored.dtype) != 0) {
    torch::Tensor copy = torch::empty(stored.shape, options);
    std::memcpy(copy.data_ptr(), stored.bytes.data(), stored.bytes.size());
    return copy;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): only read
  return torch::from_blob(const_cast<std::byte*>(stored.bytes.data()), stored.shape, options);
}

}  // namespace octavo::train
