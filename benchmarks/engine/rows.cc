// Rows with and without gradients; see rows.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/rows.h"

#include "cli/cli.h"
#include "cli/parse.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <system_error>
#include <utility>

namespace octavo::cli {
namespace {

constexpr std::int64_t kTokens = 512;       // per batch
constexpr std::int64_t kRoutes = 24;        // routes of a small batch: about 15 of 64 experts get one or more
constexpr double kIdleExperts = 1.0 / 8.0;  // share of experts that a router never chooses
// The stream of the shuffle; the streams of steps are numbered from 1.
constexpr std::uint64_t kOrder = ~std::uint64_t{0};

// Returns a random number below `count`. REQUIRES: `count` is far below 2^32.
std::int64_t below(std::uint64_t stream, std::int64_t index, std::int64_t count) {
  const std::uint64_t random = splitmix64(stream, static_cast<std::uint64_t>(index)) >> 32;
  return static_cast<std::int64_t>((random * static_cast<std::uint64_t>(count)) >> 32);
}

// Returns the stream that all tensors with `rows` rows share: for the order of their rows (kOrder), or for
// the batch of a step.
std::uint64_t stream_of_rows(std::int64_t rows, std::uint64_t kind) {
  // The number is complemented, because the streams of tensors are numbered from 0.
  return stream_of(~static_cast<std::uint64_t>(rows), kind);
}

// Returns the first `wanted` rows of a shuffle.
std::vector<std::int64_t> shuffled(std::int64_t rows, std::int64_t wanted) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(rows));
  std::iota(out.begin(), out.end(), 0);
  const std::uint64_t stream = stream_of_rows(rows, kOrder);
  for (std::int64_t i = 0; i < wanted; ++i)
    std::swap(out[static_cast<std::size_t>(i)],
              out[static_cast<std::size_t>(i + below(stream, i, rows - i))]);
  out.resize(static_cast<std::size_t>(wanted));
  return out;
}

std::vector<double> zipf(std::int64_t ranks) {
  std::vector<double> out;
  double sum = 0.0;
  for (std::int64_t rank = 1; rank <= ranks; ++rank) out.push_back(sum += 1.0 / static_cast<double>(rank));
  return out;
}

double parse_share(std::string_view text) {
  double value = 0.0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value >= 0.0 && value <= 1.0))
    throw Failure(kExitUsage, "--zeros: got '" + std::string(text) +
                                  "', expected a share from 0 to 1 such as 0.9, or several: 0,0.5,0.9");
  return value;
}

}  // namespace

RowRule row_rule(const TensorShape& tensor, double zeros) {
  const bool fewer = tensor.role == TensorRole::tokens || tensor.role == TensorRole::experts ||
                     tensor.role == TensorRole::adapter_in;
  if (tensor.row == 0 || (!fewer && zeros == 0.0)) return {};
  RowRule out{tensor.row, (tensor.numel() + tensor.row - 1) / tensor.row, 0, 0};
  if (tensor.role == TensorRole::adapter_in) return out;
  if (tensor.role == TensorRole::experts) zeros = std::max(zeros, kIdleExperts);
  out.alive = out.rows - std::llround(zeros * static_cast<double>(out.rows));
  if (tensor.role == TensorRole::tokens) out.draws = kTokens;
  if (tensor.role == TensorRole::experts) out.draws = kRoutes;
  if (out.alive == 0) out.draws = 0;
  return out;
}

std::vector<double> parse_zeros(const std::string& text) {
  std::vector<double> out;
  for (const std::string_view share : comma_separated(text)) out.push_back(parse_share(share));
  return out;
}

GradRows::GradRows(std::span<const TensorShape> tensors, double zeros) {
  for (const TensorShape& tensor : tensors) {
    Tensor& out = tensors_.emplace_back();
    out.rule = row_rule(tensor, zeros);
    out.numel = tensor.numel();
    out.at = bytes_;
    bytes_ += out.rule.rows;
    if (out.rule.alive > 0) out.row_of_rank = shuffled(out.rule.rows, out.rule.alive);
    if (out.rule.draws > 0) out.weight_up_to = zipf(out.rule.alive);
    change_ = change_ || out.rule.draws > 0;
  }
}

RowMask GradRows::mask(std::size_t tensor, const std::byte* masks) const {
  if (tensor >= tensors_.size() || tensors_[tensor].rule.rows == 0) return {};
  return {tensors_[tensor].rule.row, reinterpret_cast<const std::uint8_t*>(masks) + tensors_[tensor].at};
}

std::vector<std::byte> GradRows::masks_at(std::int64_t step) const {
  std::vector<std::byte> out(static_cast<std::size_t>(bytes_));
  for (const Tensor& tensor : tensors_) {
    const auto touch = [&](std::size_t rank) {
      out[static_cast<std::size_t>(tensor.at + tensor.row_of_rank[rank])] = std::byte{1};
    };
    if (tensor.rule.draws == 0) {
      for (std::size_t rank = 0; rank < tensor.row_of_rank.size(); ++rank) touch(rank);
      continue;
    }
    const std::uint64_t stream = stream_of_rows(tensor.rule.rows, static_cast<std::uint64_t>(step));
    for (std::int64_t draw = 0; draw < tensor.rule.draws; ++draw) {
      const double random =
          static_cast<double>(splitmix64(stream, static_cast<std::uint64_t>(draw)) >> 11) * 0x1p-53;
      const auto& weights = tensor.weight_up_to;
      const auto found = std::upper_bound(weights.begin(), weights.end(), random * weights.back());
      touch(std::min(static_cast<std::size_t>(found - weights.begin()), weights.size() - 1));
    }
  }
  return out;
}

double GradRows::share(std::span<const std::byte> masks) const {
  std::int64_t all = 0, with = 0;
  for (const Tensor& tensor : tensors_) {
    all += tensor.numel;
    if (tensor.rule.rows == 0) with += tensor.numel;
    for (std::int64_t row = 0; row < tensor.rule.rows; ++row)
      if (masks[static_cast<std::size_t>(tensor.at + row)] != std::byte{0})
        with += std::min(tensor.rule.row, tensor.numel - row * tensor.rule.row);
  }
  return all > 0 ? static_cast<double>(with) / static_cast<double>(all) : 1.0;
}

}  // namespace octavo::cli
