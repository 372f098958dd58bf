// SPDX-License-Identifier: MIT
#include "offload/pieces.h"

#include "optimizers/format_resolution.h"

#include <algorithm>

namespace octavo::offload {
namespace {

// Pieces begin at multiples of this: whole blocks of every size, and whole vectors of every buffer.
constexpr std::int64_t kUnit = kMaxBlockSize;

bool can_be_cut(const GroupConfig& config, const TensorSpec& spec) {
  return kRuleFacts[algorithm_index(config)].passes == 1 &&
         !has_rank1_scales(stored_format(spec.format, spec.ndim));
}

// The elements from `begin` to `end`. What is before `begin` has the layout of a tensor of that size, and so
// has what is before `end`; the difference is the piece.
Result<Piece> piece_of(const GroupConfig& config, std::size_t tensor, const TensorSpec& whole,
                       std::int64_t begin, std::int64_t end) {
  const auto first = [&](std::int64_t count) {
    TensorSpec spec = whole;
    if (count == whole.numel) return spec;
    spec.numel = count;
    spec.ndim = 0;
    spec.shape = {};
    return spec;
  };
  const auto before = layout(config, first(begin));
  const auto upto = layout(config, first(end));
  if (!before.ok()) return before.status();
  if (!upto.ok()) return upto.status();
  Piece piece;
  piece.tensor = tensor;
  piece.begin = begin;
  piece.spec = first(end - begin);
  piece.first = begin == 0;
  piece.last = end == whole.numel;
  const auto part = [](std::int64_t from, std::int64_t to) { return Part{from, to - from, 0}; };
  for (std::size_t s = 0; s < static_cast<std::size_t>(upto->slots); ++s) {
    piece.codes[s] = part(before->slot[s].codes_bytes, upto->slot[s].codes_bytes);
    piece.scales[s] = part(4 * before->slot[s].scales, 4 * upto->slot[s].scales);
  }
  piece.residual = part(before->residual_bytes, upto->residual_bytes);
  const auto elements = [&](DType dtype) {
    return part(begin * dtype_bytes(dtype), end * dtype_bytes(dtype));
  };
  piece.param = elements(whole.param_dtype);
  piece.grad = elements(whole.grad_dtype);
  return piece;
}

}  // namespace

Result<std::vector<Piece>> cut(const GroupConfig& config, std::size_t tensor, const TensorSpec& spec,
                               std::int64_t most) {
  std::vector<Piece> pieces;
  if (spec.numel == 0) return pieces;
  auto whole = piece_of(config, tensor, spec, 0, spec.numel);
  if (!whole.ok()) return whole.status();
  const std::int64_t count = (whole->bytes() + most - 1) / most;
  if (count <= 1 || !can_be_cut(config, spec)) {
    pieces.push_back(*whole);
    return pieces;
  }
  const std::int64_t even = (spec.numel + count - 1) / count;
  const std::int64_t step = (even + kUnit - 1) / kUnit * kUnit;
  for (std::int64_t begin = 0; begin < spec.numel; begin += step) {
    auto piece = piece_of(config, tensor, spec, begin, std::min(begin + step, spec.numel));
    if (!piece.ok()) return piece.status();
    pieces.push_back(*piece);
  }
  return pieces;
}

}  // namespace octavo::offload
