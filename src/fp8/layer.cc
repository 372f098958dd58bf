// SPDX-License-Identifier: MIT
#include "fp8/invalid_argument.h"
#include "fp8/limits.h"
#include "fp8/tiles.h"

#include <octavo/fp8_layer.h>

#include <algorithm>
#include <string>

namespace octavo::fp8 {
namespace {

constexpr std::array kPasses = {Pass::forward, Pass::dgrad, Pass::wgrad};

constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kCodesAlignment - 1) / kCodesAlignment * kCodesAlignment;
}

// An operand's shape in the matmuls that do not transpose it.
struct Shape {
  std::int64_t groups, rows, inner;
};
Shape shape(const Layer& layer, Operand operand) {
  switch (operand) {
    case Operand::x:
      return {layer.one_input ? 1 : layer.groups, layer.tokens, layer.inputs};
    case Operand::w:
      return {layer.groups, layer.outputs, layer.inputs};
    case Operand::dy:
      break;
  }
  return {layer.one_output ? 1 : layer.groups, layer.tokens, layer.outputs};
}

// The layout of an operand's codes and inverse scales in their buffer.
struct CodesLayout {
  Element element;
  Tiling tiling;
  std::int64_t groups, rows, inner;
  std::int64_t scales;  // of one group; all groups share a tensor's scale

  [[nodiscard]] std::int64_t scales_at() const { return aligned(groups * rows * inner); }
  [[nodiscard]] std::int64_t bytes() const {
    return scales_at() + aligned(4 * group_scales(tiling, scales, groups));
  }
  [[nodiscard]] Matrix matrix(const void* buffer, std::int64_t group) const {
    const auto* const bytes = static_cast<const std::uint8_t*>(buffer);
    const auto* const inverse = reinterpret_cast<const float*>(bytes + scales_at());
    return {element,
            tiling,
            rows,
            inner,
            bytes + group * rows * inner,
            inverse + (tiling == Tiling::tensor ? 0 : group * scales)};
  }
};
CodesLayout codes_layout(const Layer& layer, const Settings& settings, const Use& use) {
  const Shape whole = shape(layer, use.operand);
  const std::int64_t rows = padded(use.transposed ? whole.inner : whole.rows);
  const std::int64_t inner = padded(use.transposed ? whole.rows : whole.inner);
  const Tiling shared = tiling(settings.recipe, use.operand);
  return {use.element, shared, whole.groups, rows, inner, scale_count(shared, rows, inner)};
}

// Finds the use of the operand in this orientation by a pass of the choice. At most one pass uses it: see
// uses().
bool find_use(const Settings& settings, const Choice& choice, Operand operand, bool transposed, Use& found) {
  for (const Pass pass : kPasses) {
    if (!choice[pass]) continue;
    const Uses both = uses(settings.format, pass);
    for (const Use& use : {both.a, both.b}) {
      if (use.operand != operand || use.transposed != transposed) continue;
      found = use;
      return true;
    }
  }
  return false;
}

Status check_layer(const Layer& layer) {
  if (std::string why = why_not(layer); !why.empty()) return Status::invalid(kWhere + why);
  return {};
}

// A cast of dy computes the sums over tokens.
Status check_bias_grad(const LayerCast& args, bool casts) {
  if (args.bias_grad == nullptr || (casts && args.operand == Operand::dy)) return {};
  return invalid("bias_grad", "a buffer",
                 "null: " + (args.operand == Operand::dy
                                 ? "no pass of the choice uses dy"
                                 : "it belongs to dy, and this casts " + std::string(name(args.operand))));
}

Status fill(const LayerCast& args, bool transposed, void* buffer, Codes& out) {
  Use use;
  const char* const field = transposed ? "transposed" : "codes";
  if (!find_use(args.settings, args.choice, args.operand, transposed, use)) {
    if (buffer == nullptr) return {};
    return invalid(field, "a buffer",
                   "null: no pass of the choice uses " + std::string(name(args.operand)) +
                       (transposed ? " transposed" : ""));
  }
  const CodesLayout laid = codes_layout(args.layer, args.settings, use);
  if (buffer == nullptr)
    return invalid(field, "null", "a buffer of " + std::to_string(laid.bytes()) + " bytes");
  auto* const bytes = static_cast<std::uint8_t*>(buffer);
  out.element = use.element;
  out.data = bytes;
  out.inverse = reinterpret_cast<float*>(bytes + laid.scales_at());
  if (args.settings.recipe == Recipe::delayed) {
    if (args.delayed.scales == nullptr) return invalid("delayed.scales", "null", "the tensor's two scales");
    out.scale = args.delayed.scales + static_cast<std::size_t>(use.element);
  }
  return {};
}

// The operands of a pass.
struct Operands {
  Uses of;
  bool swapped;  // dw has the layout of w: it is transposed if w is [inputs, outputs]
};
Operands operands(const LayerMatmul& args) {
  return {uses(args.settings.format, args.pass), args.pass == Pass::wgrad && args.layer.transposed_weight};
}

}  // namespace

std::string why_not(const Layer& layer) {
  const auto outside = [](const char* field, std::int64_t size, std::int64_t most) {
    return std::string(field) + ": got " + std::to_string(size) + ", expected 0 to " + std::to_string(most);
  };
  if (layer.groups < 0 || layer.groups > kMostGroups) return outside("groups", layer.groups, kMostGroups);
  for (const auto& [field, size] : {std::pair("tokens", layer.tokens), std::pair("inputs", layer.inputs),
                                    std::pair("outputs", layer.outputs)}) {
    if (size < 0 || size > kMostSide) return outside(field, size, kMostSide);
  }
  const std::int64_t sizes[] = {padded(layer.tokens), layer.inputs, layer.outputs};
  for (const auto& [one, other] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
    const std::int64_t elements = sizes[one] * sizes[other];  // at most 2^48
    if (elements > 0 && layer.groups > kMostElements / elements)
      return outside("groups", layer.groups, kMostElements / elements) + " at these sizes";
  }
  for (const auto& [field, size] : {std::pair("inputs", layer.inputs), std::pair("outputs", layer.outputs)}) {
    if (size % kSide != 0)
      return std::string(field) + ": got " + std::to_string(size) + ", expected a multiple of 16";
  }
  if (layer.groups > 1 && layer.tokens % kSide != 0) {
    return "tokens: got " + std::to_string(layer.tokens) + " in each of " + std::to_string(layer.groups) +
           " groups, expected a multiple of 16";
  }
  return {};
}

LayerResult result(const Layer& layer, Pass pass) {
  const std::int64_t rows = padded(layer.tokens);
  switch (pass) {
    case Pass::forward:
      return {layer.one_output ? 1 : layer.groups, rows, layer.outputs};
    case Pass::dgrad:
      return {layer.one_input ? 1 : layer.groups, rows, layer.inputs};
    case Pass::wgrad:
      break;
  }
  if (layer.transposed_weight) return {layer.groups, layer.inputs, layer.outputs};
  return {layer.groups, layer.outputs, layer.inputs};
}

std::int64_t codes_bytes(const Layer& layer, const Settings& settings, const Choice& choice, Operand operand,
                         bool transposed) {
  Use use;
  return find_use(settings, choice, operand, transposed, use) ? codes_layout(layer, settings, use).bytes()
                                                              : 0;
}

Status cast(const LayerCast& args) {
  if (Status bad = check(args.settings); !bad.ok()) return bad;
  if (Status bad = check_enum("operand", args.operand); !bad.ok()) return bad;
  if (Status bad = check_layer(args.layer); !bad.ok()) return bad;
  Codes codes, transposed;
  if (Status bad = fill(args, false, args.codes, codes); !bad.ok()) return bad;
  if (Status bad = fill(args, true, args.transposed, transposed); !bad.ok()) return bad;
  const bool casts = codes.data != nullptr || transposed.data != nullptr;
  if (Status bad = check_bias_grad(args, casts); !bad.ok()) return bad;
  if (!casts) return {};
  const Shape whole = shape(args.layer, args.operand);
  CastArgs out{.device = args.device,
               .dtype = args.dtype,
               .from = args.from,
               .groups = whole.groups,
               .rows = whole.rows,
               .columns = whole.inner,
               .recipe = args.settings.recipe,
               .operand = args.operand,
               .activation = args.activation,
               .by_rows = codes,
               .transposed = transposed,
               .amax = args.settings.recipe == Recipe::delayed ? args.delayed.history : nullptr,
               .bias_grad = args.bias_grad,
               .stream = args.stream,
               .threads = args.threads,
               .workspace = args.workspace,
               .workspace_bytes = args.workspace_bytes};
  if (args.operand == Operand::w && args.layer.transposed_weight) {
    std::swap(out.rows, out.columns);
    std::swap(out.by_rows, out.transposed);
  }
  return cast(out);
}

Status matmul(const LayerMatmul& args) {
  if (Status bad = check(args.settings); !bad.ok()) return bad;
  if (Status bad = check_enum("pass", args.pass); !bad.ok()) return bad;
  if (Status bad = check_layer(args.layer); !bad.ok()) return bad;
  const auto& [of, swapped] = operands(args);
  const CodesLayout a = codes_layout(args.layer, args.settings, of.a);
  const CodesLayout b = codes_layout(args.layer, args.settings, of.b);
  const LayerResult to = result(args.layer, args.pass);
  const std::int64_t bytes = to.rows * to.columns * dtype_bytes(args.dtype);
  MatmulArgs one{.device = args.device,
                 .a = {},
                 .b = {},
                 .dtype = args.dtype,
                 .fast_sums = args.pass == Pass::forward,
                 .workspace = args.workspace,
                 .stream = args.stream,
                 .threads = args.threads};
  for (std::int64_t group = 0; group < args.layer.groups; ++group) {
    one.a = a.matrix(args.a, std::min(group, a.groups - 1));
    one.b = b.matrix(args.b, std::min(group, b.groups - 1));
    if (swapped) std::swap(one.a, one.b);
    const std::int64_t place = std::min(group, to.groups - 1);
    one.to = static_cast<std::byte*>(args.to) + place * bytes;
    one.add = args.add || place != group;
    if (Status bad = matmul(one); !bad.ok()) return bad;
  }
  return {};
}

Choice fastest(const LayerTimes& times) {
  const auto at = [](auto value) { return static_cast<std::size_t>(value); };
  const auto cost = [&](const Choice& choice) {
    double sum = 0.0;
    for (const Pass pass : kPasses) sum += choice[pass] ? times.fp8[at(pass)] : times.plain[at(pass)];
    for (const Operand operand : {Operand::x, Operand::w, Operand::dy}) {
      int orientations = 0;
      for (const Pass pass : kPasses) {
        const Uses both = uses(Format::hybrid, pass);
        orientations +=
            static_cast<int>(choice[pass] && (both.a.operand == operand || both.b.operand == operand));
      }
      const double often = operand == Operand::w ? times.casts_of_weight : 1.0;
      if (orientations == 1) sum += often * times.cast[at(operand)];
      if (orientations == 2) sum += often * times.cast_two[at(operand)];
    }
    return sum;
  };
  Choice best{{false, false, false}};
  for (unsigned set = 1; set < 8; ++set) {
    const Choice other{{(set & 1U) != 0, (set & 2U) != 0, (set & 4U) != 0}};
    const bool known = std::ranges::all_of(kPasses, [&](Pass pass) {
      return !other[pass] || (times.fp8[at(pass)] > 0.0 && times.plain[at(pass)] > 0.0);
    });
    if (known && cost(other) < cost(best)) best = other;
  }
  return best;
}

}  // namespace octavo::fp8
