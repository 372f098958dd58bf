// The cast on the CPU: each matrix of codes is computed separately, in bands of 128 rows that threads share.
// The maxima are computed first, in the memory of the inverse scales, so nothing is allocated.
// SPDX-License-Identifier: MIT
#include "codecs/fp8.h"
#include "cpu/threads.h"
#include "formula/fp8_scale.h"
#include "fp8/backend.h"
#include "fp8/column_sums.h"
#include "fp8/source.h"

#include <algorithm>
#include <mutex>

namespace octavo::fp8 {
namespace {

class Cast {
 public:
  Cast(const CastArgs& args, bool transposed)
      : args_(args),
        out_(transposed ? args.transposed : args.by_rows),
        source_(args, transposed),
        tiling_(tiling(args.recipe, args.operand)),
        map_(scale_map(tiling_, source_.rows(), source_.inner())) {}

  // Returns the maximum of all elements.
  float run() const {
    measure();
    if (out_.element == Element::e4m3) {
      write<codecs::E4M3>();
    } else {
      write<codecs::E5M2>();
    }
    float most = 0.0F;
    for (float& kept : std::span(out_.inverse, static_cast<std::size_t>(scales()))) {
      most = std::max(most, kept);
      kept = formula::inverse_scale(scale(kept), kept);
    }
    return most;
  }

 private:
  // Calls body(group, i, k, tile) for all tiles, with threads for bands.
  template <class Body>
  void each_tile(Body&& body) const {
    const std::int64_t bands = tiles_in(source_.rows());
    auto band = [&](std::int64_t number, cpu::Scratch&) {
      Tile tile;
      const std::int64_t group = number / bands, i = number % bands * kTile;
      for (std::int64_t k = 0; k < source_.inner(); k += kTile) {
        source_.load(group, i, k, tile);
        body(group, i, k, tile);
      }
    };
    cpu::parallel_for(args_.groups * bands, args_.threads, band);
  }
  [[nodiscard]] std::int64_t scales() const { return group_scales(tiling_, map_.count, args_.groups); }
  [[nodiscard]] float& slot(std::int64_t group, std::int64_t i, std::int64_t k) const {
    return out_.inverse[(tiling_ == Tiling::tensor ? 0 : group * map_.count) + map_.place(i, k)];
  }
  [[nodiscard]] std::size_t rows_from(std::int64_t i) const {
    return static_cast<std::size_t>(std::min(kTile, source_.rows() - i));
  }
  [[nodiscard]] std::size_t inner_from(std::int64_t k) const {
    return static_cast<std::size_t>(std::min(kTile, source_.inner() - k));
  }

  void measure() const {
    std::fill_n(out_.inverse, scales(), 0.0F);
    std::mutex shared;  // bands share a tensor's scale
    each_tile([&](std::int64_t group, std::int64_t i, std::int64_t k, const Tile& tile) {
      std::array<float, kTile> most{};
      for (std::size_t r = 0; r < rows_from(i); ++r) {
        for (const float x : tile[r]) most[r] = std::max(most[r], std::abs(x));  // NaN is ignored
      }
      const std::lock_guard lock(shared);
      for (std::size_t r = 0; r < rows_from(i); ++r) {
        float& shared_slot = slot(group, i + static_cast<std::int64_t>(r), k);
        shared_slot = std::max(shared_slot, most[r]);
      }
    });
  }

  [[nodiscard]] float scale(float amax) const {
    if (args_.recipe == Recipe::delayed) return *out_.scale;
    return formula::current_scale(amax, largest(out_.element), args_.recipe != Recipe::current);
  }

  template <class Codec>
  void write() const {
    each_tile([&](std::int64_t group, std::int64_t i, std::int64_t k, const Tile& tile) {
      for (std::size_t r = 0; r < rows_from(i); ++r) {
        const std::int64_t row = i + static_cast<std::int64_t>(r);
        const float factor = scale(slot(group, row, k));
        std::uint8_t* const to = out_.data + (group * source_.rows() + row) * source_.inner() + k;
        for (std::size_t c = 0; c < inner_from(k); ++c)
          to[c] = static_cast<std::uint8_t>(Codec::cast(scalar::F32(tile[r][c] * factor)).v);
      }
    });
  }

  const CastArgs& args_;
  const Codes& out_;
  Source source_;
  Tiling tiling_;
  ScaleMap map_;
};

void sum_columns(const CastArgs& args) {
  constexpr std::int64_t kStrip = 64;
  auto strip = [&](std::int64_t number, cpu::Scratch&) {
    const std::int64_t begin = number * kStrip, count = std::min(kStrip, args.columns - begin);
    ColumnSums<kStrip> sums;
    std::array<float, kStrip> row{};
    for (std::int64_t i = 0; i < args.rows; ++i) {
      cpu::load_values<scalar::Lane>(args.from, args.dtype, i * args.columns + begin, count, row.data());
      sums.add(row);
    }
    std::copy_n(sums.sum().begin(), count, args.bias_grad + begin);
  };
  cpu::parallel_for((args.columns + kStrip - 1) / kStrip, args.threads, strip);
}

}  // namespace

void cast_cpu(const CastArgs& args) {
  const cpu::FloatMode mode;  // maxima and scales may be denormal
  float most = 0.0F;
  if (args.by_rows.data != nullptr) most = Cast(args, false).run();
  if (args.transposed.data != nullptr) most = Cast(args, true).run();
  if (args.amax != nullptr) *args.amax = std::max(*args.amax, most);
  if (args.bias_grad != nullptr) sum_columns(args);
}

}  // namespace octavo::fp8
