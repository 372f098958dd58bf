// SPDX-License-Identifier: MIT
#include "train/nn/attention.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/attention_fused.h"
#include "train/nn/cuda/attention.h"
#include "train/nn/fused.h"

#include <torch/torch.h>

#include <cmath>

namespace octavo_train {
namespace {

// The value of masked scores. Its exponential is zero in any row that has an unmasked score.
constexpr double kMasked = -1e30;

// Returns scores by distance [.., T, 2 T - 1] as scores by key [.., T, T], a view. Its row i begins at column
// T - 1 - i.
torch::Tensor by_key(const torch::Tensor& scores) {
  const std::int64_t length = scores.size(-2), row = scores.size(-1);
  const torch::Tensor dense = scores.contiguous();
  return dense.as_strided({dense.size(0), dense.size(1), length, length},
                          {dense.size(1) * length * row, length * row, row - 1, 1},
                          dense.storage_offset() + length - 1);
}

// Returns `pass` with one sample number for each head of each row.
DropoutKey for_heads(const DropoutKey& pass, std::int64_t heads) {
  const torch::Tensor head = torch::arange(heads, pass.samples.options());
  return {pass.seed, pass.step, (pass.samples.unsqueeze(1) * heads + head).reshape({-1})};
}

torch::Tensor dropped(const torch::Tensor& probabilities, const Drop& drop) {
  if (!drop.training || drop.probability == 0.0) return probabilities;
  const DropoutKey pass = for_heads(drop.pass, probabilities.size(1));
  return dropout(probabilities.flatten(0, 1), drop.probability, true, pass, drop.layer, 0, cuda::kKeyPitch)
      .view_as(probabilities);
}

}  // namespace

torch::Tensor relative_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                 const torch::Tensor& positions, const torch::Tensor& bias_u,
                                 const torch::Tensor& bias_v, const torch::Tensor& lengths,
                                 const Drop& drop) {
  TORCH_CHECK(q.dim() == 4 && k.sizes() == q.sizes() && v.sizes() == q.sizes(),
              "relative_attention: queries, keys and values are ", q.sizes(), ", ", k.sizes(), " and ",
              v.sizes(), ", expected [batch, T, heads, size] three times");
  const std::int64_t length = q.size(1);
  TORCH_CHECK(positions.dim() == 3 && positions.size(0) == 2 * length - 1,
              "relative_attention: positions are ", positions.sizes(), ", expected [", 2 * length - 1,
              ", heads, size]");
  TORCH_CHECK(lengths.dim() == 1 && lengths.size(0) == q.size(0) && lengths.scalar_type() == torch::kInt64 &&
                  lengths.device() == q.device(),
              "relative_attention: lengths are ", lengths.scalar_type(), ' ', lengths.sizes(), " on ",
              lengths.device(), ", expected Long [", q.size(0), "] on ", q.device());
  if (attention_is_fusible(q, k, v))
    return relative_attention_fused(q, k, v, positions, bias_u, bias_v, lengths, drop);
  const NoAutocast no_autocast;
  const auto type = accumulation_type(q);
  const auto heads_first = [&](const torch::Tensor& x) { return x.to(type).transpose(1, 2); };
  const torch::Tensor query = heads_first(q);
  const torch::Tensor content = (query + bias_u.to(type).unsqueeze(1)).matmul(heads_first(k).mT());
  const torch::Tensor place =
      (query + bias_v.to(type).unsqueeze(1)).matmul(positions.to(type).permute({1, 2, 0}));
  const torch::Tensor scores = (content + by_key(place)) / std::sqrt(static_cast<double>(q.size(3)));
  const torch::Tensor real = length_mask(lengths, length);
  const torch::Tensor seen = (real.unsqueeze(2) & real.unsqueeze(1)).unsqueeze(1);  // [batch, 1, query, key]
  const torch::Tensor probabilities = scores.masked_fill(~seen, kMasked).softmax(-1).masked_fill(~seen, 0.0);
  return dropped(probabilities, drop).matmul(heads_first(v)).transpose(1, 2).flatten(2).to(q.scalar_type());
}

}  // namespace octavo_train
