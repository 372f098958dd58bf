// Reports what a stored moment contains and what it has lost.
// SPDX-License-Identifier: MIT
#include "optimizers/checks.h"
#include "optimizers/format_resolution.h"
#include "status/first_error.h"

#include <octavo/codec.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace octavo {
namespace {

codecs::Outermost outermost(StateFormat stored, Moment moment) {
  return at_index(Formats{}, static_cast<std::size_t>(stored), [&](auto format) {
    using F = decltype(format);
    return moment == Moment::first
               ? codecs::outermost<typename F::template Codec<Moment::first>, Moment::first>()
               : codecs::outermost<typename F::template Codec<Moment::second>, Moment::second>();
  });
}

}  // namespace

Result<MomentReport> inspect(const MomentSpec& spec, std::span<const std::byte> codes,
                             std::span<const float> scales, std::span<const float> reference) {
  if (!reference.empty() && static_cast<std::int64_t>(reference.size()) != spec.numel) {
    return Status::invalid("[inspect] reference: got ", reference.size(), " floats, expected none or numel, ",
                           spec.numel);
  }
  OCTAVO_TRY(check_buffer("[inspect] reference", reference.data(),
                          4 * static_cast<std::int64_t>(reference.size()), 4));
  const auto size = layout(spec);
  if (!size.ok()) return size.status();
  // The size is checked before memory is allocated, because `numel` may be larger than the codes that were
  // given.
  if (static_cast<std::int64_t>(codes.size()) != size->codes_bytes) {
    return Status::invalid("[inspect] codes: got ", codes.size(), " bytes, expected ", size->codes_bytes);
  }
  std::vector<float> values(static_cast<std::size_t>(spec.numel));
  OCTAVO_TRY(decode(spec, codes, scales, values));

  MomentReport report;
  report.bytes = size->codes_bytes + 4 * size->scales;
  double error = 0.0;
  double norm = 0.0;
  const std::int64_t block = std::max<std::int64_t>(1, block_of(spec.format, spec.block_size));
  const StateFormat stored = stored_format(spec.format, spec.ndim);
  const bool blocked = describe(stored, spec.moment).scale == ScalePolicy::block;
  const codecs::Outermost outer = outermost(stored, spec.moment);
  for (std::int64_t i = 0; i < spec.numel; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double value = values[at];
    report.zeros += value == 0.0 ? 1 : 0;
    report.nonfinite += std::isfinite(value) ? 0 : 1;
    if (blocked && value != 0.0) {
      // The largest value that a code of this block can have on this side of zero.
      const float scale = scales[static_cast<std::size_t>(i / block)];
      report.saturated +=
          values[at] == outer.positive * scale || values[at] == outer.negative * scale ? 1 : 0;
    }
    if (!reference.empty()) {
      const double wanted = reference[at];
      report.lost += wanted != 0.0 && value == 0.0 ? 1 : 0;
      report.max_error = std::max(report.max_error, std::fabs(value - wanted));
      error += (value - wanted) * (value - wanted);
      norm += wanted * wanted;
    }
  }
  report.relative_error = norm > 0.0 ? std::sqrt(error / norm) : std::sqrt(error);
  return report;
}

}  // namespace octavo
