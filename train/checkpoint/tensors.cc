// SPDX-License-Identifier: MIT
#include "train/checkpoint/tensors.h"

#include <torch/torch.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <unordered_map>

namespace octavo_train {
namespace {

constexpr std::size_t kNamedDifferences = 8;  // the most differences that a message lists

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

std::string text_of(const torch::Tensor& tensor) {
  return tensor_text(stored_dtype(tensor.scalar_type()), tensor.sizes());
}

using ByName = std::unordered_map<std::string_view, const torch::Tensor*>;

ByName by_name(const NamedTensors& tensors) {
  ByName out;
  for (const auto& [name, tensor] : tensors) out.emplace(name, &tensor);
  return out;
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
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
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

std::vector<TensorSource> sources_of(const NamedTensors& tensors) {
  auto held = std::make_shared<torch::Tensor>();
  std::vector<TensorSource> out;
  for (const auto& [name, tensor] : tensors) {
    out.push_back({name, stored_dtype(tensor.scalar_type()), tensor.sizes().vec(),
                   [held, tensor = tensor]() -> Result<Bytes> {
                     *held = tensor.detach().cpu().contiguous();
                     return Bytes(static_cast<const std::byte*>(held->data_ptr()), held->nbytes());
                   }});
  }
  return out;
}

Result<NamedTensors> views_of(const Safetensors& file, const std::string& path) {
  NamedTensors out;
  for (const StoredTensor& stored : file.tensors()) {
    out.emplace_back(stored.name, view_of_stored(stored));
    if (!out.back().second.defined()) {
      return Status::invalid(path + ": " + stored.name + " is " + stored.dtype +
                             ", which no tensor of a run is");
    }
  }
  return out;
}

std::string differences(const NamedTensors& saved, const NamedTensors& wanted) {
  std::vector<std::string> found;
  const ByName there = by_name(saved), asked = by_name(wanted);
  for (const auto& [name, tensor] : wanted) {
    const std::string want = text_of(tensor);
    const auto stored = there.find(name);
    if (stored == there.end()) {
      found.push_back(name + " is not there, expected " + want);
    } else if (const std::string have = text_of(*stored->second); have != want) {
      found.push_back(name + " is " + have + ", expected " + want);
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (!asked.contains(name))
      found.push_back(name + " is " + text_of(tensor) + ", which this model has not");
  }
  const std::size_t shown = std::min(found.size(), kNamedDifferences);
  std::string out = fmt::format("{}", fmt::join(std::span(found).first(shown), "; "));
  if (found.size() > shown) out += fmt::format("; and {} more", found.size() - shown);
  return out;
}

void copy_tensors(const NamedTensors& from, const NamedTensors& to) {
  const torch::NoGradGuard no_grad;
  const ByName there = by_name(from);
  for (const auto& [name, tensor] : to) {
    torch::Tensor out = tensor;
    out.copy_(*there.at(name));
  }
}

Status load_weights(const std::string& checkpoint, const NamedTensors& to) {
  const std::string path = checkpoint + "/model.safetensors";
  ASSIGN_OR_RETURN(auto file, Safetensors::open(path));
  ASSIGN_OR_RETURN(auto saved, views_of(file, path));
  if (const std::string differ = differences(saved, to); !differ.empty())
    return Status::invalid(path + ": it is of another model or precision: " + differ);
  copy_tensors(saved, to);
  return {};
}

}  // namespace octavo_train
