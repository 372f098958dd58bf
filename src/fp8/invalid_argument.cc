// SPDX-License-Identifier: MIT
#include "fp8/invalid_argument.h"

#include "optimizers/checks.h"
#include "status/first_error.h"

namespace octavo::fp8 {

Status check_call(Device device, const void* stream, int threads) {
  if (Status bad = check_device("[fp8]", device); !bad.ok()) return bad;
  return first_error({check_stream("[fp8]", device, stream), check_threads("[fp8]", threads)});
}

Status check_history(std::int64_t length, AmaxAlgo algo, int margin) {
  if (length < 1 || length > kMaxHistory) {
    return invalid("amax_history_len", length,
                   "1 to " + std::to_string(kMaxHistory) + " (1: the last step alone)");
  }
  if (margin < 0 || margin > kMaxMargin)
    return invalid("margin", margin,
                   "0 to " + std::to_string(kMaxMargin) + " (scales are divided by 2^margin)");
  return check_enum("amax_compute_algo", algo);
}

}  // namespace octavo::fp8
