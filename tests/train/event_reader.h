// Reads TensorBoard's event files for tests: TFRecords with their checksums, and the fields of Event that
// Octavo writes. Throws if a byte is wrong. It shares no code with the writer: the checksum is computed bit
// by bit.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

struct ReadEvent {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string file_version;
  int session_status = 0;
  std::map<std::string, float> scalars;
  std::map<std::string, std::string> texts;
};

inline std::uint32_t masked_crc_by_bits(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) != 0 ? (crc >> 1) ^ 0x82f63b78U : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}
  [[nodiscard]] bool done() const { return left_.empty(); }

  std::string_view take(std::uint64_t count) {
    if (count > left_.size()) throw std::runtime_error("event file: ends too early");
    const std::string_view out = left_.substr(0, count);
    left_.remove_prefix(count);
    return out;
  }
  template <class T>
  T raw() {
    T out;
    std::memcpy(&out, take(sizeof(T)).data(), sizeof(T));
    return out;
  }
  std::uint64_t varint() {
    std::uint64_t out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = raw<unsigned char>();
      out |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return out;
    }
    throw std::runtime_error("event file: a varint without an end");
  }

 private:
  std::string_view left_;
};

// Calls visit(field * 10 + wire type, reader) for each field; visit must consume the value.
template <class Visit>
void for_each_field(std::string_view message, Visit visit) {
  for (ByteReader reader(message); !reader.done();) {
    const std::uint64_t tag = reader.varint();
    visit((tag >> 3) * 10 + (tag & 7), reader);
  }
}

inline void unknown_field(std::uint64_t field) {
  throw std::runtime_error("event file: unknown field " + std::to_string(field));
}

inline void expect_message(std::string_view got, std::string_view expected) {
  if (got != expected) throw std::runtime_error("event file: not the message of a text");
}

// Reads a tensor of one string.
inline std::string read_text(std::string_view message) {
  std::string out;
  for_each_field(message, [&](std::uint64_t field, ByteReader& reader) {
    if (field == 10 && reader.varint() == 7) return;                                           // DT_STRING
    if (field == 22) return expect_message(reader.take(reader.varint()), "\x12\x02\x08\x01");  // shape [1]
    if (field != 82) unknown_field(field);
    out = reader.take(reader.varint());
  });
  return out;
}

inline void read_value(std::string_view message, ReadEvent& event) {
  std::string tag, plugin;
  std::optional<float> value;
  std::optional<std::string> text;
  for_each_field(message, [&](std::uint64_t field, ByteReader& reader) {
    if (field == 12)
      tag = reader.take(reader.varint());
    else if (field == 25)
      value = reader.raw<float>();
    else if (field == 82)
      text = read_text(reader.take(reader.varint()));
    else if (field == 92)
      plugin = reader.take(reader.varint());
    else
      unknown_field(field);
  });
  if (text) expect_message(plugin, "\x0a\x06\x0a\x04text");
  if (value.has_value() == text.has_value()) throw std::runtime_error("event file: " + tag + " has no value");
  const bool first =
      text ? event.texts.emplace(tag, *text).second : event.scalars.emplace(tag, *value).second;
  if (!first) throw std::runtime_error("event file: " + tag + " twice");
}

inline ReadEvent decode_event(std::string_view message) {
  ReadEvent event;
  for_each_field(message, [&](std::uint64_t field, ByteReader& reader) {
    if (field == 11)
      event.wall_time = reader.raw<double>();
    else if (field == 20)
      event.step = static_cast<std::int64_t>(reader.varint());
    else if (field == 32)
      event.file_version = reader.take(reader.varint());
    else if (field == 52)
      for_each_field(reader.take(reader.varint()), [&](std::uint64_t inner, ByteReader& value) {
        if (inner != 12) unknown_field(inner);
        read_value(value.take(value.varint()), event);
      });
    else if (field == 72)
      for_each_field(reader.take(reader.varint()), [&](std::uint64_t inner, ByteReader& value) {
        if (inner != 10) unknown_field(inner);
        event.session_status = static_cast<int>(value.varint());
      });
    else
      unknown_field(field);
  });
  return event;
}

inline std::vector<ReadEvent> decode_events(std::string_view bytes) {
  std::vector<ReadEvent> out;
  for (ByteReader reader(bytes); !reader.done();) {
    const std::string_view length = reader.take(8);
    if (reader.raw<std::uint32_t>() != masked_crc_by_bits(length))
      throw std::runtime_error("event file: the checksum of a length is wrong");
    const std::string_view data = reader.take(ByteReader(length).raw<std::uint64_t>());
    if (reader.raw<std::uint32_t>() != masked_crc_by_bits(data))
      throw std::runtime_error("event file: the checksum of a record is wrong");
    out.push_back(decode_event(data));
  }
  return out;
}

inline std::vector<ReadEvent> read_events(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return decode_events(text.str());
}

}  // namespace octavo_train
