// Resamples a stream of samples with soxr's HQ filter.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <soxr.h>

namespace octavo_train {

// Returns ceil(samples * to / from), with a tolerance for rounding.
std::int64_t resampled_count(std::int64_t samples, double from, double to);

class Resampler {
 public:
  static Result<Resampler> make(double from, double to);  // REQUIRES: both > 0

  // Appends the output that is ready. soxr delays some output until later calls.
  Status add(std::span<const float> samples, std::vector<float>& out);
  // Appends the rest, so that the total appended is resampled_count() of the total added.
  Status finish(std::vector<float>& out);

 private:
  struct Delete {
    void operator()(soxr_t state) const { soxr_delete(state); }
  };
  Resampler(double from, double to) : from_(from), to_(to) {}
  Status process(const float* samples, std::size_t count, std::vector<float>& out);

  double from_, to_;
  std::unique_ptr<soxr, Delete> state_;  // null if from == to
  std::int64_t added_ = 0, given_ = 0;
};

}  // namespace octavo_train
