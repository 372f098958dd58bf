// Converts moments between fp32 and the formats, outside a step.
// SPDX-License-Identifier: MIT
#include "cpu/implementations.h"
#include "cpu/rank1.h"
#include "cpu/threads.h"
#include "optimizers/checks.h"
#include "optimizers/format_resolution.h"
#include "status/first_error.h"

#include <octavo/codec.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace octavo {
namespace {

// The number of elements that one task converts: a multiple of any block.
constexpr std::int64_t kPiece = 16 * kMaxBlockSize;
// The part of a piece that fits into a thread's scratch, so that no thread allocates memory while it works.
constexpr std::int64_t kStretch = cpu::kMaxTile;
static_assert(kPiece % kStretch == 0 && kStretch % kMaxBlockSize == 0);

// Calls f(first element, count, scratch) for each piece of a tensor, on the thread pool.
template <class Fn>
void for_pieces(std::int64_t numel, Fn&& f) {
  auto body = [&](std::int64_t piece, cpu::Scratch& scratch) {
    const std::int64_t at = piece * kPiece;
    f(at, std::min(kPiece, numel - at), scratch);
  };
  cpu::parallel_for((numel + kPiece - 1) / kPiece, 0, body);
}

// Calls f(first element, count) for each part of [at, at + n) that fits into the scratch.
template <class Fn>
void for_stretches(std::int64_t at, std::int64_t n, Fn&& f) {
  for (std::int64_t done = 0; done < n; done += kStretch) f(at + done, std::min(kStretch, n - done));
}

struct Resolved {
  StateFormat stored;
  std::int64_t block;
  SlotLayout size;
  bool rank1;  // the moment has rank-1 scales
};

Result<Resolved> resolve(const std::string& where, const MomentSpec& spec) {
  if (spec.moment != Moment::first && spec.moment != Moment::second) {
    return Status::invalid(where, ".moment: got ", static_cast<std::uint32_t>(spec.moment),
                           ", expected 0 or 1");
  }
  OCTAVO_TRY(check_format(where, spec.format, spec.block_size, spec.numel, spec.shape, spec.ndim));
  Resolved r{};
  r.stored = stored_format(spec.format, spec.ndim);
  r.block = block_of(spec.format, spec.block_size);
  r.size = slot_layout(r.stored, spec.moment, r.block, spec.numel, {spec.shape.data(), spec.ndim});
  r.rank1 = has_rank1_scales(r.stored, spec.moment);
  return r;
}

Status check_sizes(const std::string& where, const Resolved& r, std::span<const std::byte> codes,
                   std::span<const float> scales) {
  if (static_cast<std::int64_t>(codes.size()) != r.size.codes_bytes) {
    return Status::invalid(where, " codes: got ", codes.size(), " bytes, expected ", r.size.codes_bytes);
  }
  if (static_cast<std::int64_t>(scales.size()) != r.size.scales) {
    return Status::invalid(where, " scales: got ", scales.size(), " floats, expected ", r.size.scales);
  }
  OCTAVO_TRY(check_buffer(where + " codes", codes.data(), r.size.codes_bytes, code_alignment(r.stored)));
  return check_buffer(where + " scales", scales.data(), 4 * r.size.scales, 4);
}

Status check_values(const std::string& where, const MomentSpec& spec, std::span<const float> values) {
  if (static_cast<std::int64_t>(values.size()) != spec.numel) {
    return Status::invalid(where, " values: got ", values.size(), " floats, expected numel, ", spec.numel);
  }
  return check_buffer(where + " values", values.data(), 4 * spec.numel, 4);
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

// A negative variance is a mistake of the caller, and no format has a code for it.
Status check_variance(const std::string& where, const MomentSpec& spec, std::span<const float> values) {
  if (spec.moment != Moment::second) return {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0.0F) {
      return Status::invalid(where, "[", i, "]: got ", values[i], ", expected at least 0 in a second moment");
    }
  }
  return {};
}

struct Job {
  const cpu::Kernels& kernels;
  const MomentSpec& spec;
  const Resolved& how;

  [[nodiscard]] std::size_t format() const { return static_cast<std::size_t>(how.stored); }
  [[nodiscard]] std::size_t moment() const { return static_cast<std::size_t>(spec.moment); }
  [[nodiscard]] std::int64_t code_at(std::int64_t element) const {
    return element * describe(how.stored, spec.moment).bits / 8;
  }
  [[nodiscard]] std::int64_t scale_at(std::int64_t element) const {
    return how.block > 0 ? element / how.block : 0;
  }
  [[nodiscard]] cpu::Shape shape() const { return {spec.shape.data(), spec.ndim}; }

  // Calls f(first element, count, scales) for parts of [at, at + n), with the scales of their blocks or of
  // each element. `at` is a multiple of kStretch.
  template <class Float, class Fn>
  void with_scales(Float* scales, std::int64_t at, std::int64_t n, float* own, Fn&& f) const {
    if (!how.rank1) return f(at, n, scales + scale_at(at));
    for_stretches(at, n, [&](std::int64_t from, std::int64_t count) {
      cpu::rank1_scales(shape(), scales, from, count, own);
      f(from, count, own);
    });
  }

  void decode(const std::byte* codes, const float* scales, std::int64_t at, std::int64_t n, float* values,
              cpu::Scratch& scratch) const {
    const auto run = kernels.decode[format()][moment()];
    with_scales(scales, at, n, scratch.scale_in[0], [&](auto from, auto count, const float* own) {
      run(codes + code_at(from), own, count, how.block, values + (from - at), &scratch);
    });
  }

  void encode(const float* values, std::int64_t at, std::int64_t n, std::byte* codes, float* scales,
              cpu::Scratch& scratch) const {
    const auto run = kernels.encode[format()][moment()];
    with_scales(scales, at, n, scratch.scale_in[0], [&](auto from, auto count, float* own) {
      run(values + (from - at), count, how.block, codes + code_at(from), own, &scratch);
    });
  }

  void encode_all(const float* values, std::byte* codes, float* scales) const {
    if (how.rank1) {  // rank-1 scales depend on the complete tensor
      cpu::reserve_scratch();
      std::fill(scales, scales + how.size.scales, 0.0F);
      cpu::raise_rank1_maxima(shape(), values, 0, spec.numel, scales);
    }
    for_pieces(spec.numel, [&](std::int64_t at, std::int64_t n, cpu::Scratch& scratch) {
      encode(values + at, at, n, codes, scales, scratch);
    });
    if (!how.rank1) return;
    for (std::int64_t i = 0; i < how.size.scales; ++i)
      scales[i] = formula::canonical(scalar::F32(scales[i])).v;
  }

  void decode_all(const std::byte* codes, const float* scales, float* values) const {
    for_pieces(spec.numel, [&](std::int64_t at, std::int64_t n, cpu::Scratch& scratch) {
      decode(codes, scales, at, n, values + at, scratch);
    });
  }
};

}  // namespace

Result<SlotLayout> layout(const MomentSpec& spec) {
  const auto how = resolve("[layout] spec", spec);
  if (!how.ok()) return how.status();
  return how->size;
}

Status encode(const MomentSpec& spec, std::span<const float> values, std::span<std::byte> codes,
              std::span<float> scales) {
  const auto how = resolve("[encode] spec", spec);
  if (!how.ok()) return how.status();
  OCTAVO_TRY(check_values("[encode]", spec, values));
  OCTAVO_TRY(check_sizes("[encode]", *how, codes, scales));
  OCTAVO_TRY(check_variance("[encode] values", spec, values));
  if (overlap(std::as_bytes(values), codes) || overlap(std::as_bytes(values), std::as_bytes(scales)) ||
      overlap(codes, std::as_bytes(scales))) {
    return Status::invalid("[encode] values, codes and scales overlap; they must not share memory");
  }
  const auto kernels = cpu::kernels();
  if (!kernels.ok()) return kernels.status();
  Job{**kernels, spec, *how}.encode_all(values.data(), codes.data(), scales.data());
  return {};
}

Status decode(const MomentSpec& spec, std::span<const std::byte> codes, std::span<const float> scales,
              std::span<float> values) {
  const auto how = resolve("[decode] spec", spec);
  if (!how.ok()) return how.status();
  OCTAVO_TRY(check_values("[decode]", spec, values));
  OCTAVO_TRY(check_sizes("[decode]", *how, codes, scales));
  if (overlap(std::as_bytes(values), codes) || overlap(std::as_bytes(values), std::as_bytes(scales))) {
    return Status::invalid("[decode] values overlap codes or scales; they must not share memory");
  }
  const auto kernels = cpu::kernels();
  if (!kernels.ok()) return kernels.status();
  Job{**kernels, spec, *how}.decode_all(codes.data(), scales.data(), values.data());
  return {};
}

Status convert(const MomentSpec& from, std::span<const std::byte> from_codes,
               std::span<const float> from_scales, const MomentSpec& to, std::span<std::byte> to_codes,
               std::span<float> to_scales) {
  const auto source = resolve("[convert] from", from);
  if (!source.ok()) return source.status();
  const auto target = resolve("[convert] to", to);
  if (!target.ok()) return target.status();
  if (from.numel != to.numel || from.moment != to.moment) {
    return Status::invalid("[convert] to: its numel and moment must equal those of from (", from.numel,
                           " elements)");
  }
  OCTAVO_TRY(check_sizes("[convert] from", *source, from_codes, from_scales));
  OCTAVO_TRY(check_sizes("[convert] to", *target, to_codes, to_scales));
  OCTAVO_TRY(check_variance("[convert] from scales", from, from_scales));
  const std::span<const std::byte> in[] = {from_codes, std::as_bytes(from_scales)};
  const std::span<const std::byte> out[] = {to_codes, std::as_bytes(to_scales)};
  for (const auto& i : in) {
    for (const auto& o : out) {
      if (overlap(i, o)) return Status::invalid("[convert] from and to overlap; they must not share memory");
    }
  }
  if (overlap(out[0], out[1]))
    return Status::invalid("[convert] to codes and scales overlap; they must not share memory");
  const auto kernels = cpu::kernels();
  if (!kernels.ok()) return kernels.status();
  const Job reader{**kernels, from, *source};
  const Job writer{**kernels, to, *target};
  if (target->rank1) {
    std::vector<float> whole(static_cast<std::size_t>(from.numel));
    reader.decode_all(from_codes.data(), from_scales.data(), whole.data());
    writer.encode_all(whole.data(), to_codes.data(), to_scales.data());
    return {};
  }
  for_pieces(from.numel, [&](std::int64_t begin, std::int64_t n, cpu::Scratch& scratch) {
    for_stretches(begin, n, [&](std::int64_t at, std::int64_t count) {
      float* const values = scratch.grad;
      reader.decode(from_codes.data(), from_scales.data(), at, count, values, scratch);
      writer.encode(values, at, count, to_codes.data(), to_scales.data(), scratch);
    });
  });
  return {};
}

}  // namespace octavo
