// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/checkpoint_weights.h"

#include "train/checkpoint/folder/checkpoint_folder.h"

#include <octavo/codec.h>

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <memory>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::string_view kModelFile = "model.safetensors";
constexpr std::string_view kOptimizerFile = "optimizer.safetensors";
constexpr const char* kNarrow = "BF16";

octavo::WeightStore store_of(const StoredTensor* master) {
  if (master == nullptr) return octavo::WeightStore::nearest;
  return master->dtype == "I8" ? octavo::WeightStore::residual8 : octavo::WeightStore::residual16;
}

Result<std::vector<float>> widen(const StoredTensor& weight, const StoredTensor* master) {
  std::vector<std::uint16_t> halves(weight.bytes.size() / sizeof(std::uint16_t));
  if (!halves.empty()) std::memcpy(halves.data(), weight.bytes.data(), weight.bytes.size());
  std::vector<float> values(halves.size());
  RETURN_IF_ERROR(with_context(
      weight.name,
      octavo::join_weights(store_of(master), halves, master == nullptr ? Bytes() : master->bytes, values)));
  return values;
}

}  // namespace

Result<CheckpointWeights> CheckpointWeights::open(const std::string& path) {
  ASSIGN_OR_RETURN(auto model, Safetensors::open(path + '/' + std::string(kModelFile)));
  CheckpointWeights out(std::move(model));
  for (const StoredTensor& each : out.model_.tensors()) out.widened_ += each.dtype == kNarrow ? 1 : 0;
  const std::string optimizer = path + '/' + std::string(kOptimizerFile);
  // An optimizer without states has no file.
  if (out.widened_ == 0 || !path_exists(optimizer)) return out;
  constexpr std::array<std::string_view, 1> kNeeded = {kOptimizerFile};
  RETURN_IF_ERROR(verify_checkpoint(path, kNeeded));
  ASSIGN_OR_RETURN(out.optimizer_, Safetensors::open(optimizer));
  RETURN_IF_ERROR(out.check_masters(optimizer));
  return out;
}

Status CheckpointWeights::check_masters(const std::string& path) {
  for (const StoredTensor& weight : model_.tensors()) {
    const StoredTensor* const master = master_of(weight);
    if (master == nullptr) continue;
    const auto numel = static_cast<std::int64_t>(weight.bytes.size() / sizeof(std::uint16_t));
    const auto have = static_cast<std::int64_t>(master->bytes.size());
    const bool known = master->dtype == "I8" || master->dtype == "I16";
    if (!known || have != octavo::residual_bytes(store_of(master), numel)) {
      return invalid_error(
          "{}: {} is {} with {} bytes, expected I8 or I16 with one for each of the {} elements of {}", path,
          master->name, master->dtype, have, numel, weight.name);
    }
    ++masters_;
  }
  return {};
}

const StoredTensor* CheckpointWeights::master_of(const StoredTensor& weight) const {
  if (weight.dtype != kNarrow || !optimizer_) return nullptr;
  return optimizer_->find(weight.name + ".master");
}

std::vector<TensorSource> CheckpointWeights::sources() const {
  const auto held = std::make_shared<std::vector<float>>();
  std::vector<TensorSource> out;
  for (const StoredTensor& weight : model_.tensors()) {
    if (weight.dtype != kNarrow) {
      out.push_back({weight.name, weight.dtype, weight.shape,
                     [bytes = weight.bytes]() -> Result<Bytes> { return bytes; }});
      continue;
    }
    out.push_back(
        {weight.name, "F32", weight.shape, [held, &weight, master = master_of(weight)]() -> Result<Bytes> {
           ASSIGN_OR_RETURN(*held, widen(weight, master));
           return Bytes(std::as_bytes(std::span(*held)));
         }});
  }
  return out;
}

}  // namespace octavo_train
