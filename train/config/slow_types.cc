// SPDX-License-Identifier: MIT
#include "train/config/slow_types.h"

namespace octavo_train {

std::string slow_type_text(ComputeType type, std::string_view gpu, int compute_major, int compute_minor) {
  if (type != ComputeType::bfloat16 || has_bfloat16_units(compute_major)) return {};
  return "compute_dtype: bfloat16 is slow on " + std::string(gpu) + " (compute capability " +
         std::to_string(compute_major) + "." + std::to_string(compute_minor) +
         "), whose tensor cores support float16 and not bfloat16; use compute_dtype=float16";
}

}  // namespace octavo_train
