// Writes messages in the wire format of Protocol Buffers.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/io/little_endian.h"

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace octavo_train {

enum class WireType : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

class ProtobufWriter {
 public:
  ProtobufWriter& varint(std::uint32_t field, std::uint64_t value) {
    tag(field, WireType::varint);
    append_varint(value);
    return *this;
  }
  ProtobufWriter& real(std::uint32_t field, double value) {
    tag(field, WireType::fixed64);
    append_little(bytes_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  ProtobufWriter& real(std::uint32_t field, float value) {
    tag(field, WireType::fixed32);
    append_little(bytes_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  ProtobufWriter& bytes(std::uint32_t field, std::string_view value) {
    tag(field, WireType::bytes);
    append_varint(value.size());
    bytes_ += value;
    return *this;
  }
  [[nodiscard]] const std::string& text() const { return bytes_; }

 private:
  void tag(std::uint32_t field, WireType type) {
    append_varint(std::uint64_t{field} << 3 | static_cast<std::uint32_t>(type));
  }
  void append_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

}  // namespace octavo_train
