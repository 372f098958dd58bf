// SPDX-License-Identifier: MIT
#include "train/optim/bucket_tensors.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

namespace octavo_train {
namespace {

torch::ScalarType own_type(const Bucket& bucket) { return static_cast<torch::ScalarType>(bucket.type); }

std::int64_t flat_bytes(const Bucket& bucket, torch::ScalarType type) {
  return bucket.elements * static_cast<std::int64_t>(c10::elementSize(type));
}

}  // namespace

BucketTensors::BucketTensors(ParallelLayout layout, int rank, const NamedTensors& parameters,
                             const GradientOptions& plan)
    : layout_(std::move(layout)), rank_(rank), plan_(plan) {
  for (const auto& [name, param] : parameters) {
    TORCH_CHECK(param.is_non_overlapping_and_dense(), name, ": its elements do not lie one after the other");
    shapes_.push_back({param.sizes().vec(), param.strides().vec()});
  }
  if (parameters.empty()) return;
  const torch::Device device = parameters[0].second.device();
  std::int64_t largest = 0;
  for (std::size_t b = 0; b < layout_.buckets().size(); ++b) {
    const auto options = torch::TensorOptions(sum_type(bucket(b))).device(device);
    if (plan_.each_pass) {
      largest = std::max(largest, flat_bytes(bucket(b), reduce_type(bucket(b))));
      mine_.push_back(torch::zeros({layout_.chunk(b, rank_).elements()}, options));
      bytes_ += static_cast<std::int64_t>(mine_.back().nbytes());
    } else {
      whole_.push_back(torch::zeros({bucket(b).elements}, options));
      mine_.push_back(part(b, whole_.back()));
      bytes_ += static_cast<std::int64_t>(whole_.back().nbytes());
    }
  }
  if (!plan_.each_pass) return;
  slots_.resize(mine_.size() > 1 || plan_.passes > 1 ? 2 : 1);
  for (torch::Tensor& slot : slots_) {
    slot = torch::zeros({largest}, torch::TensorOptions(torch::kUInt8).device(device));
    slot_bytes_ += largest;
  }
}

torch::ScalarType BucketTensors::sum_type(const Bucket& bucket) const {
  const torch::ScalarType own = own_type(bucket);
  const bool half = own == torch::kBFloat16 || own == torch::kFloat16;
  return half && (plan_.passes > 1 || plan_.reduce_in_fp32) ? torch::kFloat32 : own;
}

torch::ScalarType BucketTensors::reduce_type(const Bucket& bucket) const {
  return plan_.each_pass && !plan_.reduce_in_fp32 ? own_type(bucket) : sum_type(bucket);
}

torch::Tensor BucketTensors::whole(std::size_t number, std::size_t slot) const {
  if (!plan_.each_pass) return whole_[number];
  const torch::ScalarType type = reduce_type(bucket(number));
  return slots_[slot].narrow(0, 0, flat_bytes(bucket(number), type)).view(type);
}

BucketTensors::Tensors BucketTensors::views(std::size_t number, const torch::Tensor& whole) const {
  Tensors out;
  for (std::size_t k = 0; k < bucket(number).parameters.size(); ++k) {
    const Shape& shape = shapes_[bucket(number).parameters[k]];
    out.push_back(whole.as_strided(shape.sizes, shape.strides, bucket(number).begins[k]));
  }
  return out;
}

torch::Tensor BucketTensors::part(std::size_t bucket, const torch::Tensor& whole) const {
  const Piece chunk = layout_.chunk(bucket, rank_);
  return whole.narrow(0, chunk.begin, chunk.elements());
}

torch::Tensor BucketTensors::gradient(std::size_t parameter, const torch::Tensor& stepped) const {
  const std::size_t bucket = layout_.bucket_of(parameter);
  const Piece piece = layout_.piece(parameter, rank_);
  const torch::Tensor& sums = mine_[bucket];
  TORCH_CHECK(stepped.numel() == piece.elements(), "the optimizer steps ", stepped.numel(),
              " elements of parameter ", parameter, ", expected ", piece.elements());
  if (piece.elements() == 0) return torch::empty(stepped.sizes(), sums.options());
  const std::int64_t begin = layout_.begin_of(parameter) + piece.begin - layout_.chunk(bucket, rank_).begin;
  return sums.as_strided(stepped.sizes(), stepped.strides(), sums.storage_offset() + begin);
}

}  // namespace octavo_train
