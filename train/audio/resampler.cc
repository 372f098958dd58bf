// Resamples streams with soxr; see resampler.h.
// SPDX-License-Identifier: MIT
#include "train/audio/resampler.h"

#include "train/audio/audio.h"
#include "train/base/status.h"

#include <algorithm>
#include <cmath>

namespace octavo_train {

std::int64_t resampled_count(std::int64_t samples, double from, double to) {
  // The 1e-6 absorbs rounding: 44,100 samples at 44.1 kHz are exactly 16,000 at 16 kHz.
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(samples) * to / from - 1e-6));
}

Result<Resampler> Resampler::make(double from, double to) {
  Resampler made(from, to);
  if (from == to) return made;
  const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
  const soxr_runtime_spec_t threads = soxr_runtime_spec(1);  // clips are already read by many threads
  soxr_error_t error = nullptr;
  made.state_.reset(soxr_create(from, to, 1, &error, nullptr, &quality, &threads));
  if (error != nullptr) {
    return Status::failed("cannot resample from " + std::to_string(from) + " to " + std::to_string(to) +
                          " Hz: " + error);
  }
  return made;
}

Status Resampler::add(std::span<const float> samples, std::vector<float>& out) {
  added_ += static_cast<std::int64_t>(samples.size());
  if (state_ == nullptr) {
    out.insert(out.end(), samples.begin(), samples.end());
    return {};
  }
  return process(samples.data(), samples.size(), out);
}

Status Resampler::finish(std::vector<float>& out) {
  if (state_ == nullptr) return {};
  if (added_ > 0) {
    RETURN_IF_ERROR(process(nullptr, 0, out));
  }
  // soxr's total is within one sample of this count.
  const std::int64_t all = resampled_count(added_, from_, to_);
  out.resize(static_cast<std::size_t>(
      std::max<std::int64_t>(static_cast<std::int64_t>(out.size()) + all - given_, 0)));
  given_ = all;
  return {};
}

// `samples` == nullptr marks the end of the input.
Status Resampler::process(const float* samples, std::size_t count, std::vector<float>& out) {
  do {
    const std::size_t before = out.size();
    const auto room = static_cast<std::size_t>(static_cast<double>(count) * to_ / from_) + 1024;
    out.resize(before + room);
    std::size_t used = 0, made = 0;
    const soxr_error_t error =
        soxr_process(state_.get(), samples, count, &used, out.data() + before, room, &made);
    out.resize(before + made);
    if (error != nullptr) return Status::failed(std::string("cannot resample: ") + error);
    given_ += static_cast<std::int64_t>(made);
    if (samples == nullptr && made < room) break;
    if (samples != nullptr) {
      samples += used;
      count -= used;
      if (count == 0 && made < room) break;
    }
  } while (true);
  return {};
}

std::vector<float> resampled(std::span<const float> samples, double from, double to) {
  std::vector<float> out;
  Resampler resampler = Resampler::make(from, to).value();
  if (Status status = resampler.add(samples, out); !status.ok()) throw Error(status);
  if (Status status = resampler.finish(out); !status.ok()) throw Error(status);
  return out;
}

}  // namespace octavo_train
