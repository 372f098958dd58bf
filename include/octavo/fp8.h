// Matmuls of matrices in FP8, with what surrounds them: which tensor has which format, scales, casts, and
// the matmul itself. All memory is the caller's. Casts and scales have the same bits on the CPU and on a
// GPU; the CPU's matmuls are the reference of a GPU's, which sums in another order.
//
// A layer y = x . w^T (x [tokens, inputs], w [outputs, inputs]) has three matmuls, and Hopper's FP8 units
// take both operands with the summed dimension contiguous. So each is written d[i, j] = sum over k of
// a[i, k] * b[j, k], and some operands are used transposed ("transposed"):
//   forward   y  = x    . w^T     a = x           b = w
//   dgrad     dx = dy   . w       a = dy          b = w transposed
//   wgrad     dw = dy^T . x       a = dy transposed   b = x transposed
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

// --- what tensors are stored as ---

// Of one code, a byte. E4M3 is the variant without infinities ("e4m3fn"), with numbers up to 448; E5M2 has
// numbers up to 57344.
enum class Element : std::uint32_t { e4m3 = 0, e5m2 = 1 };
// Which tensor has which element. cuBLASLt has no matmul of two E5M2 operands: in `e5m2` weights are E4M3,
// and wgrad takes x in E4M3.
enum class Format : std::uint32_t {
  hybrid = 0,  // x and w in E4M3, dy in E5M2
  e4m3 = 1,    // all in E4M3
  e5m2 = 2,    // x and dy in E5M2, w in E4M3
};
// What has a scale, and where the scale comes from.
enum class Recipe : std::uint32_t {
  delayed = 0,  // a tensor, from the maxima of earlier steps: one pass over the tensor
  current = 1,  // a tensor, from its own maximum
  rowwise = 2,  // a row of an operand of the matmul
  block = 3,    // 128 elements of a row of x and dy, 128 x 128 elements of w
};
enum class Operand : std::uint32_t { x = 0, w = 1, dy = 2 };
enum class Pass : std::uint32_t { forward = 0, dgrad = 1, wgrad = 2 };
// How delayed scaling takes one maximum of its history.
enum class AmaxAlgo : std::uint32_t { max = 0, most_recent = 1 };
// What is done to elements before they are cast. gelu is the form with tanh.
enum class Activation : std::uint32_t { none = 0, relu = 1, gelu = 2, silu = 3 };

OCTAVO_API std::string_view name(Element value);
OCTAVO_API std::string_view name(Format value);
OCTAVO_API std::string_view name(Recipe value);
OCTAVO_API std::string_view name(Operand value);
OCTAVO_API std::string_view name(Pass value);
OCTAVO_API std::string_view name(AmaxAlgo value);
OCTAVO_API std::string_view name(Activation value);
// The value of a name; an unknown name is an error that lists the known ones.
OCTAVO_API Result<Format> parse_format(std::string_view text);
OCTAVO_API Result<Recipe> parse_recipe(std::string_view text);
OCTAVO_API Result<AmaxAlgo> parse_amax_algo(std::string_view text);
OCTAVO_API Result<Activation> parse_activation(std::string_view text);

OCTAVO_API float largest(Element element);
// The value of a code; NaN and, in E5M2, infinities included.
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
// REQUIRES: known values; so does tiling().
OCTAVO_API Uses uses(Format format, Pass pass);

// How many elements of a matrix of codes share a scale.
enum class Tiling : std::uint32_t {
  tensor = 0,      // all
  row = 1,         // a row
  tile_1x128 = 2,  // 128 in a row
  tile_128x128 = 3,
};
OCTAVO_API std::string_view name(Tiling value);
OCTAVO_API Tiling tiling(Recipe recipe, Operand operand);

// What a run chooses. The names are those of Transformer Engine.
struct Settings {
  Format format = Format::hybrid;
  Recipe recipe = Recipe::delayed;
  std::int64_t amax_history_len = 1024;  // the rest is delayed scaling's alone
  AmaxAlgo amax_compute_algo = AmaxAlgo::max;
  int margin = 0;
};
inline constexpr std::int64_t kMaxHistory = 65536;
inline constexpr int kMaxMargin = 16;
OCTAVO_API Status check(const Settings& settings);
// One line for a log: all choices, and what a reader of it may not expect.
OCTAVO_API std::string text(const Settings& settings);

// Ok where the device multiplies in FP8 with the scales of that recipe: a GPU of compute capability 8.9 or
// later, for rowwise and block one of 9.0 (Hopper). Else unsupported, with what the device is and what to do.
// The CPU computes the same slowly, which is meant for tests.
OCTAVO_API Status supported(Device device, Recipe recipe = Recipe::delayed);
// The same of a GPU by what is known of it (octavo/backend.h).
OCTAVO_API Status supported(const GpuInfo& gpu, Recipe recipe = Recipe::delayed);

// --- sizes ---

// Codes are in matrices whose sides are multiples of this. What a tensor lacks is zero, counts in no maximum,
// and adds nothing to a matmul.
inline constexpr std::int64_t kSide = 16;
constexpr std::int64_t padded(std::int64_t size) { return (size + kSide - 1) / kSide * kSide; }

// How many scales a matrix of codes [rows, inner] has, and which is that of (i, k). In the order that
// cuBLASLt reads: `tile_1x128` has those of all rows for the first 128 elements, then for the next; a row of
// `tile_128x128` is filled up to a multiple of four.
OCTAVO_API std::int64_t scale_count(Tiling tiling, std::int64_t rows, std::int64_t inner);
OCTAVO_API std::int64_t scale_place(Tiling tiling, std::int64_t rows, std::int64_t inner, std::int64_t i,
                                    std::int64_t k);

// --- delayed scaling ---

// The state of a tensor: two scales, by Element (a tensor may be cast to both), 1 at first; then its history
// of `length` maxima, 0 at first. Slot 0 of the history gathers the maximum of the step under way, which
// cast() does. States of several tensors lie one behind the other.
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

// Ends a step for every tensor, as Transformer Engine does: with a the maximum of all slots (NaN left out),
// or slot 0 for `most_recent`,
//   scale = largest(element) * 2^-margin / a    where a is finite and above zero, else as it was;
//                                               an infinite scale becomes the largest float
// then slots move down by one, slot 0 becomes the last one and is zero. A tensor whose slot 0 is zero was not
// used: it keeps its scale and its history. An infinite maximum that is in the history keeps the scale as
// long as it is there: who skips a step for it should set slot 0 to zero.
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
  std::uint8_t* data = nullptr;  // null: not wanted, and nothing else is looked at
  float* inverse = nullptr;      // scale_count() numbers: what codes are multiplied by
  const float* scale = nullptr;  // delayed alone: what elements are multiplied by
};

// Writes a matrix as codes: by rows ([padded(rows), padded(columns)]), transposed
// ([padded(columns), padded(rows)]), or both; of `groups` matrices each by itself, one behind the other, with
// its own scales, but for a tensor's scale, which is that of all. An element becomes
//   cast(scale * activation(x))      in fp32, rounded after each operation
// where cast() rounds to the nearest code, ties to the even one, keeps the sign of zero, gives the largest
// finite code for everything beyond, infinities included, and the code 0x7F for NaN: what the hardware's
// cvt.rn.satfinite does.
//
// But for `delayed` the scale is largest(element) / a, with a the maximum of the elements that share it; 1
// where a is zero or infinite; the largest float where it would be infinite; and rounded down to a power of
// two for `rowwise` and `block`. As in Transformer Engine, maxima leave NaN out.
//
// A cast hides an infinity. So that a matmul does not, the inverse scale of elements with an infinite one
// among them is NaN. (Transformer Engine has the largest finite number there.)
struct CastArgs {
  Device device;
  DType dtype = DType::f32;
  const void* from = nullptr;  // [groups, rows, columns], dense, aligned to its element
  std::int64_t groups = 1, rows = 0, columns = 0;
  Recipe recipe = Recipe::delayed;
  Operand operand = Operand::x;  // decides what shares a scale
  Activation activation = Activation::none;
  Codes by_rows, transposed;
  float* amax = nullptr;       // raised to the maximum of what is cast; null: not wanted
  float* bias_grad = nullptr;  // [columns]: the sums of `from` over rows, of one group; null: not wanted
  void* stream = nullptr;
  int threads = 0;  // cpu: 0 means the pool's size
  // Used with bias_grad on a GPU: cast_workspace_bytes() that no other work uses meanwhile, aligned to 4.
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};
// The workspace of a cast of [rows, columns] with bias_grad; 0 on the CPU.
OCTAVO_API std::int64_t cast_workspace_bytes(Device device, std::int64_t rows, std::int64_t columns);
// Sums over rows are in fp32 by a tree: neighbouring rows, neighbouring pairs, and so on; the sign of a zero
// is plus.
OCTAVO_API Status cast(const CastArgs& args);

// --- matmuls ---

// An operand, as cast() wrote it.
struct Matrix {
  Element element = Element::e4m3;
  Tiling tiling = Tiling::tensor;
  std::int64_t rows = 0, inner = 0;    // multiples of kSide
  const std::uint8_t* data = nullptr;  // on a GPU aligned to 16; the matmul is fastest from 256
  const float* inverse = nullptr;
};

// to[i, j] = sum over k of a[i, k] * b[j, k], each times its inverse scale. Sums are in fp32, in the order of
// k; where scales change along k, by 128 terms that are scaled and added. Then `to` is added in fp32, if
// asked for, and the result is rounded once. NaN and infinities of codes go into the sum as they are.
struct MatmulArgs {
  Device device;
  Matrix a, b;                // of the same inner size
  void* to = nullptr;         // [a.rows, b.rows], dense, aligned to its element, on a GPU to 16
  DType dtype = DType::bf16;  // of `to`
  bool add = false;
  // A GPU's: sums in its matrix units, of about 14 bits, as Transformer Engine has them for forward; else
  // they are moved to fp32 every 128 terms or so.
  bool fast_sums = false;
  void* workspace = nullptr;  // a GPU's: workspace_bytes(), of nobody else meanwhile, aligned to 256
  void* stream = nullptr;
  int threads = 0;  // cpu: 0 means the pool's size
};
// 0 on the CPU.
constexpr std::int64_t workspace_bytes(Device device) {
  return device.kind == DeviceKind::cuda ? std::int64_t{32} << 20 : 0;
}
OCTAVO_API Status matmul(const MatmulArgs& args);

}  // namespace octavo::fp8
