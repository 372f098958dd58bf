// A layer's three matmuls in FP8: which codes each of them needs, and where those lie in memory. What calls
// it (an autograd function, a training loop) allocates the buffers, casts the operands once, and makes the
// matmuls that it wants in FP8. The others it makes as before.
//
//   forward:   cast x and w     y  = matmul(forward, codes of x, codes of w)
//   backward:  cast dy          dx = matmul(dgrad, codes of dy, transposed codes of w)
//                               dw = matmul(wgrad, transposed codes of dy, transposed codes of x)
//
// The codes of x are needed until y is made, its transposed codes until dw is; the codes of w as long as w
// keeps its values.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/fp8.h>

#include <array>
#include <cstdint>

namespace octavo::fp8 {

// y = x . w^T, or several of them side by side (heads, experts), a group each.
struct Layer {
  std::int64_t groups = 1;
  std::int64_t tokens = 0, inputs = 0, outputs = 0;
  bool one_input = false;   // all groups have one x: dx is the sum over them
  bool one_output = false;  // y is the sum over the groups: all of them have one dy
  // Of w in memory: [groups, inputs, outputs], as bare parameters are; else [groups, outputs, inputs], as
  // nn.Linear's is. dw lies as w does.
  bool transposed_weight = false;
};

// Which of the passes are in FP8.
struct Choice {
  std::array<bool, 3> fp8 = {true, true, true};  // by Pass

  [[nodiscard]] bool operator[](Pass pass) const { return fp8[static_cast<std::size_t>(pass)]; }
  friend bool operator==(const Choice&, const Choice&) = default;
};

// Why no pass of this layer can be in FP8; empty: they can. Inputs and outputs must be multiples of kSide,
// and where groups are side by side, tokens too. All other matmuls of a model stay as they are. result() and
// codes_bytes() are about layers that can.
OCTAVO_API std::string why_not(const Layer& layer);

// The matrix that a pass writes: [groups, rows, columns], groups one behind the other. Where tokens are no
// multiple of kSide, rows are filled up: the memory has `rows`, of which the first are meant.
struct LayerResult {
  std::int64_t groups = 1, rows = 0, columns = 0;
};
OCTAVO_API LayerResult result(const Layer& layer, Pass pass);

// Bytes of an operand's codes with their inverse scales, in one buffer that is aligned to kCodesAlignment.
// 0 where no pass of `choice` uses the operand so.
inline constexpr std::int64_t kCodesAlignment = 256;
OCTAVO_API std::int64_t codes_bytes(const Layer& layer, const Settings& settings, const Choice& choice,
                                    Operand operand, bool transposed);

// Casts an operand for all passes of `choice` that use it. Of `settings`, the format and the recipe count.
struct LayerCast {
  Device device;
  Layer layer;
  Settings settings;
  Choice choice;
  Operand operand = Operand::x;
  DType dtype = DType::bf16;
  const void* from = nullptr;  // dense: x, w or dy with its groups
  // Of codes_bytes(); null where that is 0.
  void* codes = nullptr;
  void* transposed = nullptr;
  DelayedTensor delayed;  // delayed alone: gives the scale, and its slot 0 is raised to the maximum
  Activation activation = Activation::none;
  float* bias_grad = nullptr;  // [outputs]: the sums of dy over tokens, of one group; null: not wanted
  void* stream = nullptr;
  int threads = 0;
  // Used with bias_grad on a GPU: cast_workspace_bytes() that no other work uses meanwhile, aligned to 4.
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};
OCTAVO_API Status cast(const LayerCast& args);
// The workspace of a cast of dy with bias_grad; 0 on the CPU.
inline std::int64_t cast_workspace_bytes(Device device, const Layer& layer) {
  return cast_workspace_bytes(device, layer.tokens, layer.outputs);
}

struct LayerMatmul {
  Device device;
  Layer layer;
  Settings settings;
  Pass pass = Pass::forward;
  // Buffers that cast() wrote, of the pass's operands in the order of uses(): forward: x, w; dgrad: dy, w
  // transposed; wgrad: dy transposed, x transposed.
  const void* a = nullptr;
  const void* b = nullptr;
  void* to = nullptr;  // of result(); dense
  DType dtype = DType::bf16;
  bool add = false;
  void* workspace = nullptr;  // a GPU's: workspace_bytes(), of nobody else meanwhile, aligned to 256
  void* stream = nullptr;
  int threads = 0;
};
OCTAVO_API Status matmul(const LayerMatmul& args);

// --- the faster of two ---

// Microseconds of what a training step does for a layer. A number that is not measured is 0, and then its
// pass stays as it was.
struct LayerTimes {
  std::array<double, 3> plain = {};     // the matmuls without FP8, by Pass
  std::array<double, 3> fp8 = {};       // the matmuls in FP8, by Pass, without casts
  std::array<double, 3> cast = {};      // of one orientation alone, by Operand
  std::array<double, 3> cast_two = {};  // of both in one go
  double casts_of_weight = 1.0;         // per step and pass: less than 1 where passes share a step's codes
};
// The choice with the least sum of matmuls and casts, of the eight that there are.
OCTAVO_API Choice fastest(const LayerTimes& times);

}  // namespace octavo::fp8
