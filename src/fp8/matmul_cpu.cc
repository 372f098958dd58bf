// The matmul on the CPU, which is the reference for a GPU. Threads compute parts of 64 x 64 results; for each
// part, 128 terms at a time are decoded and multiplied.
// SPDX-License-Identifier: MIT
#include "cpu/product.h"
#include "cpu/threads.h"
#include "cpu/tile_io.h"
#include "fp8/backend.h"
#include "fp8/tiles.h"
#include "fp8/values.h"

#include <algorithm>
#include <array>

namespace octavo::fp8 {
namespace {

constexpr std::int64_t kPart = 64;

// An operand with the layout of its scales.
struct Side {
  explicit Side(const Matrix& matrix)
      : value(values(matrix.element)),
        codes(matrix.data),
        inverse(matrix.inverse),
        rows(matrix.rows),
        inner(matrix.inner),
        map(scale_map(matrix.tiling, rows, inner)) {}

  [[nodiscard]] float at(std::int64_t i, std::int64_t k) const { return value[codes[i * inner + k]]; }
  [[nodiscard]] double scale(std::int64_t i, std::int64_t k) const {
    return static_cast<double>(inverse[map.place(i, k)]);
  }
  [[nodiscard]] bool changes_along_inner() const { return map.across != 0; }

  const std::array<float, 256>& value;
  const std::uint8_t* codes;
  const float* inverse;
  std::int64_t rows, inner;
  ScaleMap map;
};

// The terms and sums of one part.
struct Part {
  std::int64_t row, column, rows, columns;
  std::array<float, kPart * kTile> a{};       // [rows, terms]
  std::array<float, kTile * kPart> b{};       // [terms, columns]
  std::array<float, kPart * kPart> sum{};     // of terms with the same scale
  std::array<float, kPart * kPart> scaled{};  // scaled sums
};

class Multiply {
 public:
  explicit Multiply(const MatmulArgs& args)
      : args_(args), a_(args.a), b_(args.b), by_tile_(a_.changes_along_inner() || b_.changes_along_inner()) {}

  void run(std::int64_t row, std::int64_t column) const {
    Part part{row, column, std::min(kPart, a_.rows - row), std::min(kPart, b_.rows - column)};
    for (std::int64_t k = 0; k < a_.inner; k += kTile) {
      add_terms(k, std::min(kTile, a_.inner - k), part);
      if (by_tile_ || k + kTile >= a_.inner) add_scaled(k, part);
    }
    for (std::int64_t i = 0; i < part.rows; ++i) store(part, i);
  }

 private:
  void add_terms(std::int64_t k, std::int64_t terms, Part& part) const {
    for (std::int64_t i = 0; i < part.rows; ++i) {
      for (std::int64_t t = 0; t < terms; ++t)
        part.a[static_cast<std::size_t>(i * kTile + t)] = a_.at(part.row + i, k + t);
    }
    for (std::int64_t j = 0; j < part.columns; ++j) {
      for (std::int64_t t = 0; t < terms; ++t)
        part.b[static_cast<std::size_t>(t * kPart + j)] = b_.at(part.column + j, k + t);
    }
    cpu::add_product_part(part.rows, part.columns, terms, {part.a.data(), kTile, 1}, part.b.data(), kPart,
                          part.sum.data(), kPart);
  }

  // Scales are multiplied in double, so that two of them neither overflow nor underflow.
  void add_scaled(std::int64_t k, Part& part) const {
    for (std::int64_t i = 0; i < part.rows; ++i) {
      const double left = a_.scale(part.row + i, k);
      for (std::int64_t j = 0; j < part.columns; ++j) {
        const auto at = static_cast<std::size_t>(i * kPart + j);
        const double factor = left * b_.scale(part.column + j, k);
        part.scaled[at] += static_cast<float>(static_cast<double>(part.sum[at]) * factor);
      }
    }
    part.sum.fill(0.0F);
  }

  void store(Part& part, std::int64_t i) const {
    const std::int64_t at = (part.row + i) * b_.rows + part.column;
    float* const sums = part.scaled.data() + i * kPart;
    if (args_.add) {
      std::array<float, kPart> before;
      cpu::load_values<scalar::Lane>(args_.to, args_.dtype, at, part.columns, before.data());
      for (std::int64_t j = 0; j < part.columns; ++j) sums[j] += before[static_cast<std::size_t>(j)];
    }
    cpu::store_values<scalar::Lane>(sums, part.columns, args_.to, args_.dtype, at);
  }

  const MatmulArgs& args_;
  Side a_, b_;
  bool by_tile_;
};

}  // namespace

void matmul_cpu(const MatmulArgs& args) {
  const Multiply multiply(args);
  const std::int64_t across = (args.b.rows + kPart - 1) / kPart, down = (args.a.rows + kPart - 1) / kPart;
  auto part = [&](std::int64_t number, cpu::Scratch&) {
    multiply.run(number / across * kPart, number % across * kPart);
  };
  cpu::parallel_for(down * across, args.threads, part);
}

}  // namespace octavo::fp8
