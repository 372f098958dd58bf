// The precision inside the functions of train/nn: sums, norms and probabilities are in fp32 or a wider type,
// whatever the dtype of the activations and whatever autocast would choose.
// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

namespace octavo_train {

inline torch::ScalarType accumulation_type(const torch::Tensor& x) {
  return x.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}
inline torch::Tensor to_accumulation_type(const torch::Tensor& x) { return x.to(accumulation_type(x)); }

// Disables autocast for the lifetime of the object.
struct NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

// Throws c10::Error unless `lengths` has one number for each row of x: int64 [batch], on x's device.
inline void check_lengths(const char* name, const torch::Tensor& lengths, const torch::Tensor& x) {
  TORCH_CHECK(lengths.dim() == 1 && lengths.size(0) == x.size(0) && lengths.scalar_type() == torch::kInt64 &&
                  lengths.device() == x.device(),
              name, ": lengths are ", lengths.scalar_type(), ' ', lengths.sizes(), " on ", lengths.device(),
              ", expected Long [", x.size(0), "] on ", x.device());
}

// Returns [batch, length], true where a position is before its row's end.
inline torch::Tensor length_mask(const torch::Tensor& lengths, std::int64_t length) {
  return torch::arange(length, lengths.options()).unsqueeze(0) < lengths.unsqueeze(1);
}

}  // namespace octavo_train
