// The options of FP8 matmuls, and the check that a device supports them.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/native.h>

#include <cstdint>
#include <string>

namespace octavo::torch::fp8 {

// The names are Transformer Engine's; octavo/fp8.h defines the values.
struct Options {
  std::string format = "hybrid";   // e4m3, e5m2
  std::string recipe = "delayed";  // current, rowwise, block
  std::int64_t amax_history_len = 1024;
  std::string amax_compute_algo = "max";  // most_recent
  int margin = 0;
  std::string select = "measure";  // times plain and FP8, and uses the faster; always: all passes in FP8
  std::string fallback = "error";  // bf16: matmuls stay plain on a device without FP8
  // The share of a weight's cast that counts for one matmul when passes are timed: 1 / (matmuls with the
  // weight per step).
  double casts_of_weight = 1.0;
};

// The options in the C ABI's numbers. Throws c10::Error for an invalid option.
struct Numbers {
  explicit Numbers(const Options& options)
      : format(native::parse("fp8_format", options.format)),
        recipe(native::parse("fp8_recipe", options.recipe)),
        algo(native::parse("amax_compute_algo", options.amax_compute_algo)),
        margin(options.margin),
        history(options.amax_history_len),
        measure(one_of("select", options.select, "measure", "always")),
        may_fall_back(one_of("fallback", options.fallback, "bf16", "error")) {
    // The core checks these numbers when it updates scales: here those of 0 tensors.
    octavo_fp8_scale_args none = native::sized<octavo_fp8_scale_args>();
    float unused = 0.0F;
    none.algo = algo, none.margin = margin, none.length = history, none.states = &unused;
    native::check(octavo_fp8_update_scales(&none), "octavo::torch::fp8: ");
    TORCH_CHECK(options.casts_of_weight > 0.0 && options.casts_of_weight <= 1.0,
                "octavo::torch::fp8: casts_of_weight is ", options.casts_of_weight,
                ", expected above 0 and at most 1");
  }

  bool delayed() const { return recipe == 0; }

  std::uint32_t format, recipe, algo;
  std::int32_t margin;
  std::int64_t history;
  bool measure, may_fall_back;

 private:
  // Returns true for the first value.
  static bool one_of(const char* field, const std::string& value, const char* first, const char* second) {
    TORCH_CHECK(value == first || value == second, "octavo::torch::fp8: ", field, " is \"", value,
                "\", expected \"", first, "\" or \"", second, "\"");
    return value == first;
  }
};

// Returns why the device has no FP8 with that recipe (its number: octavo_parse); empty: it has.
inline std::string why_unsupported(const ::torch::Device& device, std::uint32_t recipe) {
  if (device.is_meta()) return {};  // a prediction for another device
  if (!device.is_cpu() && !device.is_cuda())
    return "FP8 matmuls on " + device.str() + " are not supported, expected cuda";
  const octavo_status status =
      octavo_fp8_supported(native::device_kind(device), native::device_index(device), recipe);
  return status == 0 ? std::string() : octavo_last_error();
}

}  // namespace octavo::torch::fp8
