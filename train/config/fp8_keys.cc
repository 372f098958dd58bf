// Defines the keys of FP8 matmuls. The core defines the names of formats, recipes and algorithms
// (octavo/fp8.h).
// SPDX-License-Identifier: MIT
#include "train/config/fp8_settings.h"
#include "train/config/schema.h"

#include <octavo/fp8.h>

#include <initializer_list>

namespace octavo_train {
namespace {

using F = Fp8Settings;
using R = octavo::fp8::Settings;

template <class E>
Codec<E> named(std::initializer_list<E> values) {
  std::vector<Spelling<E>> spellings;
  for (const E value : values) spellings.push_back({value, octavo::fp8::name(value)});
  return choice<E>(std::move(spellings));
}

Codec<int> small_integer(int low, int high) {
  const Codec<std::int64_t> wide = integer(low, high);
  return {wide.expected,
          [read = wide.read](const YamlNode& node) -> std::optional<int> {
            const auto value = read(node);
            return value ? std::optional<int>(static_cast<int>(*value)) : std::nullopt;
          },
          [](const int& value) { return std::to_string(value); }};
}

}  // namespace

std::vector<Key> fp8_keys() {
  using octavo::fp8::AmaxAlgo, octavo::fp8::Format, octavo::fp8::Recipe;
  const auto formats = named({Format::hybrid, Format::e4m3, Format::e5m2});
  const auto recipes = named({Recipe::delayed, Recipe::current, Recipe::rowwise, Recipe::block});
  const auto algos = named({AmaxAlgo::max, AmaxAlgo::most_recent});
  return {
      {"training.fp8.enabled", Setting{field(&F::enabled, flag()), "false", {"use_fp8"}},
       "the model's products with weights in FP8, of the GPU's FP8 units: guides/train.md"},
      {"training.fp8.format", Setting{field(&R::format, formats), "hybrid", {"fp8_format"}},
       "what numbers are stored as: hybrid: activations and weights in E4M3, gradients in E5M2; e4m3: all in "
       "E4M3; "
       "e5m2: activations and gradients in E5M2, weights in E4M3 (and activations too where they meet "
       "gradients)"},
      {"training.fp8.recipe", Setting{field(&R::recipe, recipes), "delayed"},
       "what has a scale, and where it comes from: delayed: a tensor, from earlier steps; current: a tensor, "
       "from "
       "itself; rowwise: a row; block: 128 numbers, of weights 128 x 128"},
      {"training.fp8.amax_history_len",
       Setting{field(&R::amax_history_len, integer(1, octavo::fp8::kMaxHistory)),
               "1024",
               {"fp8_amax_history_len"}},
       "delayed: of how many steps the largest numbers are kept"},
      {"training.fp8.amax_compute_algo",
       Setting{field(&R::amax_compute_algo, algos), "max", {"fp8_amax_compute_algo"}},
       "delayed: which of them makes the scale: the largest, or that of the last step"},
      {"training.fp8.margin", Setting{field(&R::margin, small_integer(0, octavo::fp8::kMaxMargin)), "0"},
       "delayed: scales are divided by 2^margin"},
      {"training.fp8.select",
       Setting{field(&F::select,
                     choice<Fp8Select>({{Fp8Select::measure, "measure"}, {Fp8Select::always, "always"}})),
               "measure"},
       "measure: the first step times each product with and without FP8, and the faster one is used; "
       "always: FP8 "
       "wherever sizes allow it"},
      {"training.fp8.fallback",
       Setting{field(&F::fallback,
                     choice<Fp8Fallback>({{Fp8Fallback::error, "error"}, {Fp8Fallback::bf16, "bf16"}})),
               "error"},
       "on a device without FP8: error, or bf16: a warning, and products without FP8 (in compute_dtype)",
       Effect::none},
  };
}

}  // namespace octavo_train
