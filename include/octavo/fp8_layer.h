// A layer's three matmuls in FP8: the codes that each of them needs, and their layout in memory. The caller
// (an autograd function, a training loop) allocates the buffers, casts the operands once, and computes some
// of the matmuls in FP8.
//
//   forward:   cast x and w     y  = matmul(forward, codes of x, codes of w)
//   backward:  cast dy          dx = matmul(dgrad, codes of dy, transposed codes of w)
//                               dw = matmul(wgrad, transposed codes of dy, transposed codes of x)
//
// The codes of x are needed until y is computed, and its transposed codes until dw is computed. The codes of
// w are valid until its values change.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/fp8.h>

#include <array>
#include <cstdint>

namespace octavo::fp8 {

// y = x . w^T, or one for each group (heads, experts).
struct Layer {
  std::int64_t groups = 1;
  std::int64_t tokens = 0, inputs = 0, outputs = 0;
  bool one_input = false;   // all groups have one x: dx is the sum over them
  bool one_output = false;  // y is the sum over the groups: all of them have one dy
  // If true, w is [groups, inputs, outputs] in memory, as parameters without a module are; else it is
  // [groups, outputs, inputs], as in nn.Linear. dw has the layout of w.
  bool transposed_weight = false;
};

// The passes in FP8.
struct Choice {
  std::array<bool, 3> fp8 = {true, true, true};  // by Pass

  [[nodiscard]] bool operator[](Pass pass) const { return fp8[static_cast<std::size_t>(pass)]; }
  friend bool operator==(const Choice&, const Choice&) = default;
};

// Returns why no pass of this layer can be in FP8; empty: they can. Inputs and outputs must be multiples of
// kSide, and tokens too if there are several groups. result() and codes_bytes() need a layer that can be in
// FP8.
OCTAVO_API std::string why_not(const Layer& layer);

// The result of a pass: [groups, rows, columns]. If tokens are not a multiple of kSide, rows are padded: the
// memory has `rows` rows, and the padding comes last.
struct LayerResult {
  std::int64_t groups = 1, rows = 0, columns = 0;
};
OCTAVO_API LayerResult result(const Layer& layer, Pass pass);

// Returns the bytes of an operand's codes with their inverse scales, in one buffer aligned to
// kCodesAlignment; 0 if no pass of `choice` uses this orientation of the operand.
inline constexpr std::int64_t kCodesAlignment = 256;
OCTAVO_API std::int64_t codes_bytes(const Layer& layer, const Settings& settings, const Choice& choice,
                                    Operand operand, bool transposed);

// Casts an operand for all passes of `choice` that use it. Only the format and the recipe of `settings`
// matter.
struct LayerCast {
  Device device;
  Layer layer;
  Settings settings;
  Choice choice;
  Operand operand = Operand::x;
  DType dtype = DType::bf16;
  const void* from = nullptr;  // dense: x, w or dy with its groups
  // codes_bytes() bytes each; null if that is 0.
  void* codes = nullptr;
  void* transposed = nullptr;
  DelayedTensor delayed;  // delayed only: has the scale; its slot 0 is raised to the maximum
  Activation activation = Activation::none;
  float* bias_grad = nullptr;  // [outputs]: the sums of dy over tokens, of one group; null: not wanted
  void* stream = nullptr;
  int threads = 0;
  // Used with bias_grad on a GPU: cast_workspace_bytes() that no other work uses meanwhile, aligned to 4.
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};
OCTAVO_API Status cast(const LayerCast& args);
// Returns the bytes of the workspace of a cast of dy with bias_grad; 0 on the CPU.
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
  void* workspace = nullptr;  // GPU only: workspace_bytes(), not shared with concurrent work, aligned to 256
  void* stream = nullptr;
  int threads = 0;
};
OCTAVO_API Status matmul(const LayerMatmul& args);

// --- the fastest choice ---

// Microseconds of the parts of a layer's training step; 0: not measured, and then the pass is not in FP8.
struct LayerTimes {
  std::array<double, 3> plain = {};     // matmuls without FP8, by Pass
  std::array<double, 3> fp8 = {};       // matmuls in FP8, by Pass, without casts
  std::array<double, 3> cast = {};      // of one orientation, by Operand
  std::array<double, 3> cast_two = {};  // of both orientations in one call
  double casts_of_weight = 1.0;         // per step and pass: less than 1 if passes share a step's codes
};
// Returns the choice, of all eight, with the smallest sum of the times of matmuls and casts.
OCTAVO_API Choice fastest(const LayerTimes& times);

}  // namespace octavo::fp8
