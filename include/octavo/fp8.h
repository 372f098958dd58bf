// FP8 matmuls: element formats, scales, casts, and the matmul. The caller owns all memory. Casts and scales
// have the same bits on the CPU and on a GPU. The CPU's matmuls are the reference for a GPU, which sums in
// another order.
//
// A layer y = x . w^T (x [tokens, inputs], w [outputs, inputs]) has three matmuls. Hopper's FP8 units require
// the summed dimension to be contiguous in both operands. So each matmul is d[i, j] = sum over k of a[i, k] *
// b[j, k], and some operands are transposed:
//   forward   y  = x    . w^T     a = x                b = w
//   dgrad     dx = dy   . w       a = dy               b = w transposed
//   wgrad     dw = dy^T . x       a = dy transposed    b = x transposed
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace octavo {
struct GpuInfo;
}

namespace octavo::fp8 {

// --- formats and recipes ---

// The type of a code, which is a byte. E4M3 is the variant without infinities ("e4m3fn"), with numbers up to
// 448; E5M2 has numbers up to 57344.
enum class Element : std::uint32_t { e4m3 = 0, e5m2 = 1 };
// The elements of each tensor. cuBLASLt has no matmul of two E5M2 operands: in `e5m2` weights are E4M3, and
// wgrad reads x in E4M3.
enum class Format : std::uint32_t {
  hybrid = 0,  // x and w in E4M3, dy in E5M2
  e4m3 = 1,    // all in E4M3
  e5m2 = 2,    // x and dy in E5M2, w in E4M3
};
// The elements that share a scale, and the maximum that the scale is computed from.
enum class Recipe : std::uint32_t {
  delayed = 0,  // a tensor, from the maxima of earlier steps: one pass over the tensor
  current = 1,  // a tensor, from its own maximum
  rowwise = 2,  // a row of an operand of the matmul
  block = 3,    // 128 elements of a row of x and dy, 128 x 128 elements of w
};
enum class Operand : std::uint32_t { x = 0, w = 1, dy = 2 };
enum class Pass : std::uint32_t { forward = 0, dgrad = 1, wgrad = 2 };
// How delayed scaling computes one maximum from its history.
enum class AmaxAlgo : std::uint32_t { max = 0, most_recent = 1 };
// The function that a cast applies to elements first. gelu is the form with tanh.
enum class Activation : std::uint32_t { none = 0, relu = 1, gelu = 2, silu = 3 };

OCTAVO_API std::string_view name(Element value);
OCTAVO_API std::string_view name(Format value);
OCTAVO_API std::string_view name(Recipe value);
OCTAVO_API std::string_view name(Operand value);
OCTAVO_API std::string_view name(Pass value);
OCTAVO_API std::string_view name(AmaxAlgo value);
OCTAVO_API std::string_view name(Activation value);
// Return the value of a name. An unknown name is an error that lists all names.
OCTAVO_API Result<Format> parse_format(std::string_view text);
OCTAVO_API Result<Recipe> parse_recipe(std::string_view text);
OCTAVO_API Result<AmaxAlgo> parse_amax_algo(std::string_view text);
OCTAVO_API Result<Activation> parse_activation(std::string_view text);

OCTAVO_API float largest(Element element);
// Returns the value of a code, which may be NaN or, in E5M2, infinite.
OCTAVO_API float value(Element element, std::uint8_t code);

// An operand of a matmul.
struct Use {
  Operand operand = Operand::x;
  bool transposed = false;
  Element element = Element::e4m3;
};
struct Uses {
  Use a, b;
};
// REQUIRES: valid enumerators, like tiling().
OCTAVO_API Uses uses(Format format, Pass pass);

// The elements of a matrix of codes that share a scale.
enum class Tiling : std::uint32_t {
  tensor = 0,      // all elements
  row = 1,         // a row
  tile_1x128 = 2,  // 128 elements of a row
  tile_128x128 = 3,
};
OCTAVO_API std::string_view name(Tiling value);
OCTAVO_API Tiling tiling(Recipe recipe, Operand operand);

// The options of a run, with Transformer Engine's names.
struct Settings {
  Format format = Format::hybrid;
  Recipe recipe = Recipe::delayed;
  std::int64_t amax_history_len = 1024;  // this and the next two: delayed scaling only
  AmaxAlgo amax_compute_algo = AmaxAlgo::max;
  int margin = 0;
};
inline constexpr std::int64_t kMaxHistory = 65536;
inline constexpr int kMaxMargin = 16;
OCTAVO_API Status check(const Settings& settings);
// Returns a line for a log with all options, and notes about surprising ones.
OCTAVO_API std::string text(const Settings& settings);

// Ok if the device has FP8 units that support the recipe's scales: a GPU of compute capability 8.9 or later,
// for rowwise and block of 9.0 (Hopper). Else unsupported, with what the device is and what to do. The CPU
// computes the same numbers slowly: it is supported only if the environment variable OCTAVO_FP8_REFERENCE is
// 1, for tests.
OCTAVO_API Status supported(Device device, Recipe recipe = Recipe::delayed);
// Checks a GPU by its description (octavo/backend.h).
OCTAVO_API Status supported(const GpuInfo& gpu, Recipe recipe = Recipe::delayed);

// --- sizes ---

// The sides of matrices of codes are multiples of this. The padding is zero, so it changes no maximum and no
// result.
inline constexpr std::int64_t kSide = 16;
constexpr std::int64_t padded(std::int64_t size) { return (size + kSide - 1) / kSide * kSide; }

// Return the number of scales of a matrix of codes [rows, inner], and the index of the scale of (i, k).
// Scales are in cuBLASLt's order: `tile_1x128` has the scales of all rows for the first 128 elements, then
// for the next ones; a row of `tile_128x128` is padded to a multiple of four.
OCTAVO_API std::int64_t scale_count(Tiling tiling, std::int64_t rows, std::int64_t inner);
OCTAVO_API std::int64_t scale_place(Tiling tiling, std::int64_t rows, std::int64_t inner, std::int64_t i,
                                    std::int64_t k);

// --- delayed scaling ---

// The state of a tensor: two scales, by Element (a tensor may be cast to both), 1 at first; then its history
// of `length` maxima, 0 at first. cast() raises slot 0 of the history to the maximum of the current step.
// States of several tensors are contiguous.
inline constexpr std::int64_t kScalesOfState = 2;
constexpr std::int64_t state_floats(std::int64_t length) { return kScalesOfState + length; }
struct DelayedTensor {
  float* scales = nullptr;
  float* history = nullptr;

  static constexpr DelayedTensor at(float* states, std::int64_t length, std::int64_t number) {
    float* const own = states + number * state_floats(length);
    return {own, own + kScalesOfState};
  }
};

// Ends a step for every tensor, as Transformer Engine does. Let a be the maximum of all slots, ignoring NaN,
// or slot 0 for `most_recent`:
//   scale = largest(element) * 2^-margin / a    if a is finite and above zero, else unchanged;
//                                               an infinite scale becomes the largest float
// Then slots move down by one, slot 0 moves to the end, and the new slot 0 is zero. A tensor whose slot 0 is
// zero was not used: its scale and its history do not change. An infinite maximum blocks the scale for as
// long as it is in the history: set slot 0 to zero if the step is skipped.
struct ScaleUpdate {
  Device device;
  float* states = nullptr;
  std::int64_t tensors = 0;
  std::int64_t length = 0;
  AmaxAlgo algo = AmaxAlgo::max;
  int margin = 0;
  void* stream = nullptr;
};
OCTAVO_API Status update_scales(const ScaleUpdate& update);

// --- casts ---

// A matrix of codes [rows, inner] that cast() writes.
struct Codes {
  Element element = Element::e4m3;
  std::uint8_t* data = nullptr;  // null: not wanted; the other fields are ignored
  float* inverse = nullptr;      // scale_count() factors of the codes
  const float* scale = nullptr;  // delayed only: the factor of elements
};

// Writes a matrix as codes: by rows ([padded(rows), padded(columns)]), transposed ([padded(columns),
// padded(rows)]), or both. Each of `groups` contiguous matrices has separate scales, except for `tensor`,
// where all groups share one scale. An element becomes
//   cast(scale * activation(x))      in fp32, rounded after each operation
// where cast() rounds to the nearest code, ties to even, keeps the sign of zero, gives the largest finite
// code for larger numbers and infinities, and the code 0x7F for NaN, as the hardware's cvt.rn.satfinite does.
//
// Except for `delayed`, the scale is largest(element) / a, where a is the maximum of the elements that share
// it. It is 1 if a is zero or infinite, the largest float if it would be infinite, and rounded down to a
// power of two for `rowwise` and `block`. Maxima ignore NaN, as in Transformer Engine.
//
// A cast hides an infinity. To show it in results, the inverse scale of elements with an infinity among them
// is NaN. (Transformer Engine gives the largest finite number.)
struct CastArgs {
  Device device;
  DType dtype = DType::f32;
  const void* from = nullptr;  // [groups, rows, columns], dense, aligned to its element
  std::int64_t groups = 1, rows = 0, columns = 0;
  Recipe recipe = Recipe::delayed;
  Operand operand = Operand::x;  // defines the elements that share a scale
  Activation activation = Activation::none;
  Codes by_rows, transposed;
  float* amax = nullptr;       // raised to the maximum of the elements; null: not wanted
  float* bias_grad = nullptr;  // [columns]: the sums of `from` over rows, of one group; null: not wanted
  void* stream = nullptr;
  int threads = 0;  // cpu: 0 means the pool's size
  // Used with bias_grad on a GPU: cast_workspace_bytes() that no other work uses meanwhile, aligned to 4.
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};
// Returns the bytes of a cast's workspace for [rows, columns] with bias_grad; 0 on the CPU.
OCTAVO_API std::int64_t cast_workspace_bytes(Device device, std::int64_t rows, std::int64_t columns);
// Sums over rows are in fp32 by a tree: neighbouring rows, neighbouring pairs, and so on. A zero sum is +0.
OCTAVO_API Status cast(const CastArgs& args);

// --- matmuls ---

// An operand that cast() wrote.
struct Matrix {
  Element element = Element::e4m3;
  Tiling tiling = Tiling::tensor;
  std::int64_t rows = 0, inner = 0;    // multiples of kSide
  const std::uint8_t* data = nullptr;  // on a GPU aligned to 16; an alignment of 256 is fastest
  const float* inverse = nullptr;
};

// Computes to[i, j] = sum over k of a[i, k] * b[j, k], each times its inverse scale. Sums are in fp32, in the
// order of k. If scales change along k, sums of 128 terms are scaled and added. With `add`, the previous `to`
// is added in fp32. The result is rounded once. NaN and infinities of codes are terms like others.
struct MatmulArgs {
  Device device;
  Matrix a, b;                // of the same inner size
  void* to = nullptr;         // [a.rows, b.rows], dense, aligned to its element, on a GPU to 16
  DType dtype = DType::bf16;  // of `to`
  bool add = false;
  // GPU only: sums stay in its matrix units with about 14 bits, as in Transformer Engine's forward pass; else
  // they are moved to fp32 about every 128 terms.
  bool fast_sums = false;
  void* workspace = nullptr;  // GPU only: workspace_bytes(), not shared with concurrent work, aligned to 256
  void* stream = nullptr;
  int threads = 0;  // cpu: 0 means the pool's size
};
// Returns the bytes of a matmul's workspace; 0 on the CPU.
constexpr std::int64_t workspace_bytes(Device device) {
  return device.kind == DeviceKind::cuda ? std::int64_t{32} << 20 : 0;
}
OCTAVO_API Status matmul(const MatmulArgs& args);

}  // namespace octavo::fp8
