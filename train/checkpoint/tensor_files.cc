// SPDX-License-Identifier: MIT
#include "train/checkpoint/tensor_files.h"

#include "train/base/status.h"
#include "train/checkpoint/stored_tensors.h"

#include <torch/torch.h>

#include <memory>
#include <unordered_map>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::size_t kNamedDifferences = 8;  // the most differences that a message lists

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
  std::string out;
  for (std::size_t i = 0; i < found.size() && i < kNamedDifferences; ++i)
    out += (i > 0 ? "; " : "") + found[i];
  if (found.size() > kNamedDifferences)
    out += "; and " + std::to_string(found.size() - kNamedDifferences) + " more";
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
