// One encoded moment, by the library and by the reference, in buffers of the exact size.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/reference/formats.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"

#include <octavo/codec.h>

#include <span>
#include <string>
#include <vector>

namespace test {

struct EncodedBuffers {
  Buffer codes, scales;

  [[nodiscard]] std::span<std::byte> code_span() const {
    return {codes.data(), static_cast<std::size_t>(codes.size())};
  }
  [[nodiscard]] std::span<float> scale_span() const {
    return {scales.as<float>(), static_cast<std::size_t>(scales.size() / 4)};
  }
  [[nodiscard]] std::span<const std::uint8_t> code_bytes() const {
    return {codes.as<const std::uint8_t>(), static_cast<std::size_t>(codes.size())};
  }
};

inline EncodedBuffers make_buffers(const octavo::MomentSpec& spec) {
  const octavo::SlotLayout layout = octavo::layout(spec).value();
  const std::int64_t unit = spec.format == octavo::StateFormat::fp32   ? 4
                            : spec.format == octavo::StateFormat::bf16 ? 2
                                                                       : 1;
  return {Buffer(layout.codes_bytes, 3 * unit), Buffer(4 * layout.scales, 4)};
}

inline EncodedBuffers encode(const octavo::MomentSpec& spec, std::span<const float> values) {
  EncodedBuffers out = make_buffers(spec);
  const octavo::Status status = octavo::encode(spec, values, out.code_span(), out.scale_span());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(out.codes.surroundings_intact() && out.scales.surroundings_intact());
  return out;
}

inline std::vector<float> decode(const octavo::MomentSpec& spec, const EncodedBuffers& in) {
  std::vector<float> values(static_cast<std::size_t>(spec.numel));
  const octavo::Status status = octavo::decode(spec, in.code_span(), in.scale_span(), values);
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

// Compares library and reference: returns "" if codes and scales are equal in bytes.
inline std::string encode_difference(const octavo::MomentSpec& spec, std::span<const float> values) {
  const EncodedBuffers got = encode(spec, values);
  const reference::Encoded expected = reference::encode(spec, values);
  if (static_cast<std::size_t>(got.codes.size()) != expected.codes.size()) return "size of codes";
  if (got.scale_span().size() != expected.scales.size()) return "number of scales";
  const std::string scales =
      first_difference(got.scales.data(), expected.scales.data(), expected.scales.size(), sizeof(float));
  if (!scales.empty()) return "scale, " + scales;
  const std::string codes =
      first_difference(got.codes.data(), expected.codes.data(), expected.codes.size(), 1);
  return codes.empty() ? "" : "codes, " + codes;
}

inline std::string decode_difference(const octavo::MomentSpec& spec, const EncodedBuffers& in) {
  const std::vector<float> got = decode(spec, in);
  const std::vector<float> expected = reference::decode(spec, in.code_bytes(), in.scale_span());
  return first_difference(got.data(), expected.data(), expected.size(), sizeof(float));
}

inline std::string name_of(const octavo::MomentSpec& spec) {
  return std::string(octavo::name(spec.format)) +
         (spec.moment == octavo::Moment::first ? " first" : " second") + " block " +
         std::to_string(spec.block_size) + " numel " + std::to_string(spec.numel);
}

}  // namespace test
