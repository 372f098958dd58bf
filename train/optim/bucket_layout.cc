// SPDX-License-Identifier: MIT
#include "train/optim/bucket_layout.h"

#include <octavo/optimizer.h>

#include <algorithm>
#include <vector>

namespace octavo_train {
namespace {

// The smallest alignment of pieces, in elements: a multiple of every block size, cache line and vector.
constexpr std::int64_t kLeastAlignment = 256;

std::int64_t alignment_of(const ParameterGroups& groups) {
  std::int64_t out = kLeastAlignment;
  for (const GroupOptions& each : groups.options) out = std::max(out, octavo::default_block_size(each.state));
  return out;
}

}  // namespace

ParallelLayout lay_out(const ParameterGroups& groups, int ranks, bool divided, std::int64_t bucket_bytes) {
  std::vector<LaidParameter> laid;
  for (std::size_t i = 0; i < groups.parameters.size(); ++i) {
    const torch::Tensor& param = groups.parameters[i].second;
    const octavo::StateFormat state = groups.options[groups.group[i]].state;
    laid.push_back(
        {param.numel(), static_cast<int>(param.scalar_type()), param.element_size(),
         !octavo::format_for(state, param.numel(), octavo::kMinQuantizedSize, /*sharded=*/true).ok()});
  }
  return ParallelLayout::make(laid, ranks, alignment_of(groups), divided, bucket_bytes);
}

}  // namespace octavo_train
