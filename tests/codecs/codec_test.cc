// Compares the library's bytes with the reference's for every format, moment, block size and implementation,
// on ordinary and on special values, for sizes around the blocks.
// SPDX-License-Identifier: MIT
#include "tests/reference/formats.h"
#include "tests/support/moment.h"
#include "tests/support/random.h"

#include <octavo/formats.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace test {
namespace {

using octavo::Moment;
using octavo::MomentSpec;
using octavo::StateFormat;

constexpr std::int64_t kSizes[] = {0, 1, 31, 255, 256, 257, 4095, 4097};
constexpr float kHuge = std::numeric_limits<float>::max();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::uint32_t crc32(const void* data, std::size_t bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (std::size_t i = 0; i < bytes; ++i) {
    crc ^= static_cast<const std::uint8_t*>(data)[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1u ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

struct Input {
  const char* name;
  std::vector<float> values;
};

// Puts `value` into every block, at an index that changes from block to block.
std::vector<float> sprinkled(std::vector<float> values, float value, std::size_t every) {
  for (std::size_t i = every / 3; i < values.size(); i += every + 1) values[i] = value;
  return values;
}

std::vector<Input> inputs(std::int64_t numel, Moment moment) {
  const auto ordinary = spread_values(numel, 11);
  std::vector<float> denormal = any_finite_values(numel, 13);
  for (float& value : denormal) value = reference::from_bits(reference::bits_of(value) & 0x807FFFFFu);
  std::vector<float> tiny = spread_values(numel, 14, 6);
  for (float& value : tiny) value *= 0x1p-125f;
  std::vector<float> same(static_cast<std::size_t>(numel), -0.75f);
  std::vector<Input> list = {{"ordinary", ordinary},
                             {"wide", spread_values(numel, 12, 60)},
                             {"any finite", any_finite_values(numel, 12)},
                             {"denormal", denormal},
                             {"around the smallest scale", tiny},
                             {"zero", std::vector<float>(static_cast<std::size_t>(numel), 0.0f)},
                             {"negative zero", std::vector<float>(static_cast<std::size_t>(numel), -0.0f)},
                             {"all equal", same},
                             {"huge", sprinkled(ordinary, kHuge, 200)},
                             {"most negative", sprinkled(ordinary, -kHuge, 200)},
                             {"negative maximum", sprinkled(ordinary, -77.0f, 61)},
                             {"one NaN", sprinkled(ordinary, reference::from_bits(0xFFA12345u), 3000)},
                             {"one infinity", sprinkled(ordinary, -kInf, 3000)},
                             {"NaN and infinity", sprinkled(sprinkled(ordinary, NAN, 900), kInf, 700)}};
  if (moment == Moment::second) {
    for (Input& input : list) make_second_moment(input.values);
  }
  return list;
}

std::vector<MomentSpec> specs() {
  std::vector<MomentSpec> list;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const Moment moment : {Moment::first, Moment::second}) {
      for (const std::int64_t block : {0, 32, 4096}) {
        if (block != 0 && !has_blocks(format)) continue;
        for (const std::int64_t numel : kSizes) list.push_back({moment, format, block, numel, {}, 0});
      }
    }
  }
  return list;
}

// The reference decodes its own maps. The tables of bitsandbytes and torchao are fixed by checksums.
TEST(Codec, ReferenceMapsAreThePeersTables) {
  EXPECT_EQ(crc32(reference::map_8bit(Moment::first).data(), 1024), 0x1B137AEBu);
  EXPECT_EQ(crc32(reference::map_8bit(Moment::second).data(), 1024), 0xE871278Fu);
}

// The signed 4-bit map as torchao 0.18 builds it: create_dynamic_map(True, 3, 4), read as fp32 bits.
TEST(Codec, ReferenceMapOfFourBitsIsTorchaos) {
  constexpr std::uint32_t kBits[16] = {0xBF633333, 0xBF29999A, 0xBEE00000, 0xBE599999, 0xBD9EB852, 0xBD051EB9,
                                       0xBBB43958, 0x00000000, 0x3BB43958, 0x3D051EB9, 0x3D9EB852, 0x3E599999,
                                       0x3EE00000, 0x3F29999A, 0x3F633333, 0x3F800000};
  for (std::size_t code = 0; code < 16; ++code) {
    EXPECT_EQ(reference::bits_of(reference::map_4bit(Moment::first)[code]), kBits[code]) << code;
  }
}

TEST(Codec, LibraryMapsAreThePeersTables) {
  for (const Moment moment : {Moment::first, Moment::second}) {
    const MomentSpec spec{moment, StateFormat::int8, 256, 256, {}, 0};
    EncodedBuffers all = make_buffers(spec);
    for (int code = 0; code < 256; ++code)
      all.codes.as<std::uint8_t>()[code] = static_cast<std::uint8_t>(code);
    all.scale_span()[0] = 1.0f;
    const std::vector<float> map = decode(spec, all);
    EXPECT_EQ(crc32(map.data(), 1024), moment == Moment::first ? 0x1B137AEBu : 0xE871278Fu);
  }
}

TEST(Codec, LayoutHasTheDocumentedSizes) {
  for (const MomentSpec& spec : specs()) {
    const auto layout = octavo::layout(spec).value();
    EXPECT_EQ(layout.codes_bytes, reference::codes_bytes(spec)) << name_of(spec);
    EXPECT_EQ(layout.scales, reference::scale_count(spec)) << name_of(spec);
  }
}

TEST(Codec, EncodeEqualsReference) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (const MomentSpec& spec : specs()) {
      for (const Input& input : inputs(spec.numel, spec.moment)) {
        const std::string difference = encode_difference(spec, input.values);
        ASSERT_EQ(difference, "") << implementation << ", " << name_of(spec) << ", " << input.name;
      }
    }
  }
}

TEST(Codec, DecodeEqualsReferenceOnEncodedValues) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (const MomentSpec& spec : specs()) {
      for (const Input& input : inputs(spec.numel, spec.moment)) {
        const std::string difference = decode_difference(spec, encode(spec, input.values));
        ASSERT_EQ(difference, "") << implementation << ", " << name_of(spec) << ", " << input.name;
      }
    }
  }
}

// Tests codes and scales that no encoder writes: every byte pattern has a defined value.
TEST(Codec, DecodeEqualsReferenceOnAnyBytes) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    Random random(21);
    for (const MomentSpec& spec : specs()) {
      EncodedBuffers any = make_buffers(spec);
      for (std::byte& byte : any.code_span()) byte = static_cast<std::byte>(random.bits());
      for (float& scale : any.scale_span()) scale = reference::from_bits(random.bits32());
      ASSERT_EQ(decode_difference(spec, any), "") << implementation << ", " << name_of(spec);
    }
  }
}

TEST(Codec, ZeroBytesAreTheZeroState) {
  for (const MomentSpec& spec : specs()) {
    const EncodedBuffers zero = make_buffers(spec);
    for (const float value : decode(spec, zero)) ASSERT_EQ(value, 0.0f) << name_of(spec);
  }
}

TEST(Codec, PositiveVarianceIsNeverStoredAsZero) {
  for (const StateFormat format : octavo::all_state_formats()) {
    for (int exponent = -149; exponent < 127; ++exponent) {
      std::vector<float> values(64, std::ldexp(1.0f, exponent));
      values[7] = 0x1p-149f;
      values[63] = kHuge;
      const MomentSpec spec{Moment::second, format, has_blocks(format) ? 64 : 0, 64, {}, 0};
      const EncodedBuffers encoded = encode(spec, values);
      if (octavo::describe(format)->moment[static_cast<std::size_t>(Moment::second)].zero_code < 0) {
        for (const float value : decode(spec, encoded)) ASSERT_GT(value, 0.0f);
        continue;
      }
      const std::size_t bytes = format == StateFormat::fp32 ? 4 : format == StateFormat::bf16 ? 2 : 1;
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint32_t code = 0;
        std::memcpy(&code, encoded.codes.data() + i * bytes, bytes);
        ASSERT_NE(code, 0u) << octavo::name(format) << " 2^" << exponent << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace test
