// SPDX-License-Identifier: MIT
#include "train/checkpoint/stored_tensors.h"

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>

namespace octavo_train {
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

bool is_convertible(torch::ScalarType from, torch::ScalarType to) {
  return from == to || (c10::isFloatingType(from) && c10::isFloatingType(to)) ||
         (c10::isIntegralType(from, false) && c10::isIntegralType(to, false));
}

// Returns why a stored tensor cannot be copied into `place`; empty if it can.
std::string misfit(const StoredTensor& stored, const torch::Tensor& place) {
  const auto type = scalar_type_of(stored.dtype);
  const bool fits = place.sizes().equals(stored.shape) && type && is_convertible(*type, place.scalar_type());
  if (fits) return {};
  return " is " + tensor_text(stored.dtype, stored.shape) + ", expected " +
         tensor_text(stored_dtype(place.scalar_type()), place.sizes());
}

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

Fit fit_tensors(const std::vector<RenamedTensor>& stored, const NamedTensors& model) {
  Fit out;
  std::unordered_map<std::string_view, const StoredTensor*> places;
  for (const RenamedTensor& each : stored) places.emplace(each.name, each.stored);
  for (const auto& [name, tensor] : model) {
    const auto found = places.find(name);
    if (found == places.end()) {
      out.missing.push_back(name);
      continue;
    }
    if (std::string why = misfit(*found->second, tensor); !why.empty()) out.misfits.push_back(name + why);
    out.copies.emplace_back(tensor, found->second);
    places.erase(found);
  }
  for (const RenamedTensor& each : stored) {
    if (places.contains(each.name)) out.left_over.push_back(each.stored->name);
  }
  return out;
}

std::int64_t copy_stored(const Fit& fit) {
  const torch::NoGradGuard no_grad;
  std::int64_t converted = 0;
  for (const auto& [place, stored] : fit.copies) {
    if (stored_dtype(place.scalar_type()) != stored->dtype) ++converted;
    torch::Tensor(place).copy_(view_of_stored(*stored));
  }
  return converted;
}

}  // namespace octavo_train
