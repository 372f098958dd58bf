// SPDX-License-Identifier: MIT
#include "train/log/event_file.h"

#include "train/io/protobuf_wire.h"

#include <array>
#include <bit>

namespace octavo_train {
namespace {

constexpr std::uint32_t kCastagnoli = 0x82f63b78;  // the polynomial, bits reversed

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    table[i] = crc;
  }
  return table;
}

// The field numbers below are from tensorflow/core/util/event.proto, and from summary.proto, tensor.proto and
// tensor_shape.proto in framework/.
using Message = ProtobufWriter;

Message event(double wall_time, std::int64_t step) {
  Message message;
  message.real(1, wall_time).varint(2, static_cast<std::uint64_t>(step));
  return message;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = 0xffffffff;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return crc ^ 0xffffffff;
}

std::uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8; }

std::string tfrecord(std::string_view data) {
  std::string out;
  append_little(out, static_cast<std::uint64_t>(data.size()));
  append_little(out, masked_crc32c(out));
  out += data;
  append_little(out, masked_crc32c(data));
  return out;
}

std::string version_event(double wall_time) {
  Message message;
  message.real(1, wall_time).bytes(3, "brain.Event:2");
  return tfrecord(message.text());
}

std::string session_start_event(double wall_time, std::int64_t step) {
  Message session;
  session.varint(1, 1);  // status START
  return tfrecord(event(wall_time, step).bytes(7, session.text()).text());
}

std::string scalars_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  Message summary;
  for (const Scalar& scalar : scalars) {
    Message value;
    value.bytes(1, scalar.tag).real(2, scalar.value);
    summary.bytes(1, value.text());
  }
  return tfrecord(event(wall_time, step).bytes(5, summary.text()).text());
}

// The value is a tensor of one string, for the plugin `text`.
std::string text_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view markdown) {
  constexpr std::uint64_t kString = 7;  // DT_STRING
  const Message size = Message().varint(1, 1);
  const Message shape = Message().bytes(2, size.text());
  const Message tensor = Message().varint(1, kString).bytes(2, shape.text()).bytes(8, markdown);
  const Message plugin = Message().bytes(1, "text");
  const Message metadata = Message().bytes(1, plugin.text());
  const Message value = Message().bytes(1, tag).bytes(8, tensor.text()).bytes(9, metadata.text());
  const Message summary = Message().bytes(1, value.text());
  return tfrecord(event(wall_time, step).bytes(5, summary.text()).text());
}

}  // namespace octavo_train
