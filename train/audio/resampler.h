// soxr's HQ filter over a stream of samples.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <soxr.h>

namespace octavo::train {

// ceil(samples * to / from), up to rounding of the product.
std::int64_t resampled_count(std::int64_t samples, double from, double to);

class Resampler {
 public:
  static Result<Resampler> make(double from, double to);  // REQUIRES: both > 0

  // Appends what comes of these samples; what they become may lag behind.
  Status add(std::span<const float> samples, std::vector<float>& out);
  // Appends the rest, so that all that was appended is resampled_count() of all that was added.
  Status finish(std::vector<float>& out);

 private:
  struct Delete {
    void operator()(soxr_t state) const { soxr_delete(state); }
  };
  Resampler(double from, double to) : from_(from), to_(to) {}
  Status process(const float* samples, std::size_t count, std::vector<float>& out);

  double from_, to_;
  std::unique_ptr<soxr, Delete> state_;  // none: from == to
  std::int64_t added_ = 0, given_ = 0;
};

}  // namespace octavo::train
