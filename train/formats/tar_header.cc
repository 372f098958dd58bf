// Parses unchecked headers of tar archives and of pax; see tar_header.h.
// SPDX-License-Identifier: MIT
#include "train/formats/tar_header.h"

#include "train/base/status.h"
#include "train/formats/safetensors_format.h"
#include "train/io/little_endian.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace octavo_train {
namespace {

constexpr auto kSizeLimit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

std::string_view text_field(std::span<const std::byte> block, TarField field) {
  const std::string_view text = as_text(block.subspan(field.at, field.size));
  return text.substr(0, text.find('\0'));
}

// Parses octal digits between blanks, or GNU tar's binary form: 0x80, then the number, most significant byte
// first.
std::optional<std::uint64_t> number_field(std::span<const std::byte> block, TarField field) {
  const auto bytes = block.subspan(field.at, field.size);
  std::uint64_t value = 0;
  if (bytes[0] == std::byte{0x80}) {
    for (const std::byte byte : bytes.subspan(1)) {
      if (value > kSizeLimit >> 8) return std::nullopt;
      value = value << 8 | std::to_integer<std::uint64_t>(byte);
    }
    return value;
  }
  std::string_view text = text_field(block, field);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  text = text.substr(0, text.find(' '));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 8);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> decimal(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Status set_pax(PaxFields& fields, std::string_view key, std::string_view value) {
  if (key == "path") {
    fields.path = std::string(value);
  } else if (key == "size") {
    fields.size = decimal(value);
    if (!fields.size || *fields.size > kSizeLimit) {
      return Status::invalid("size " + quote_name(value) + " in a pax header, expected a number below 2^63");
    }
  } else if (key.starts_with("GNU.sparse")) {
    return sparse_file();
  }
  return {};
}

}  // namespace

Status sparse_file() {
  return Status::unsupported("a sparse file, expected a plain file; pack the archive without --sparse");
}

std::uint64_t tar_sum(std::span<const std::byte> block) {
  std::uint64_t sum = kTarSum.size * ' ';
  for (std::size_t i = 0; i < kTarBlock; ++i) {
    if (i < kTarSum.at || i >= kTarSum.at + kTarSum.size) sum += std::to_integer<std::uint64_t>(block[i]);
  }
  return sum;
}

Result<TarHeader> parse_tar_header(std::span<const std::byte> block) {
  const std::string_view magic = as_text(block.subspan(kTarMagic.at, kTarMagic.size));
  if (magic != std::string_view("ustar\0", 6) && magic != "ustar ") {
    return Status::invalid(
        "no header of a tar archive (ustar, GNU or pax); the file is torn or of another format");
  }
  if (number_field(block, kTarSum) != tar_sum(block)) {
    return Status::invalid("the header's checksum is wrong; the archive is damaged");
  }
  const std::optional<std::uint64_t> size = number_field(block, kTarSize);
  if (!size) return Status::invalid("the header's size is not a number of 0 or more below 2^63");
  TarHeader header;
  header.size = *size;
  header.type = static_cast<char>(block[kTarType.at]);
  header.name = text_field(block, kTarName);
  // GNU tar stores other data where ustar has the first part of a long name.
  if (magic != "ustar ") {
    if (const std::string_view prefix = text_field(block, kTarPrefix); !prefix.empty()) {
      header.name = std::string(prefix) + "/" + header.name;
    }
  }
  return header;
}

// Parses records of `LENGTH KEY=VALUE\n`, where LENGTH counts the complete record.
Result<PaxFields> parse_pax(std::string_view text) {
  PaxFields fields;
  while (!text.empty()) {
    const std::size_t blank = text.find(' ');
    const std::optional<std::uint64_t> length =
        blank <= 20 ? decimal(text.substr(0, blank)) : std::optional<std::uint64_t>();
    if (!length || *length > text.size() || *length < blank + 3) {
      return Status::invalid("a pax header that is no list of `LENGTH KEY=VALUE`");
    }
    const std::string_view record = text.substr(blank + 1, static_cast<std::size_t>(*length) - blank - 1);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos || record.back() != '\n') {
      return Status::invalid("a pax header that is no list of `LENGTH KEY=VALUE`");
    }
    const std::string_view value = record.substr(equals + 1, record.size() - equals - 2);
    RETURN_IF_ERROR(set_pax(fields, record.substr(0, equals), value));
    text.remove_prefix(static_cast<std::size_t>(*length));
  }
  return fields;
}

Result<std::string> safe_tar_name(std::string_view name) {
  const auto refuse = [&](const char* why) {
    return Status::invalid("file " + quote_name(name) + ": " + why + ", expected a path inside the archive");
  };
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; };
  if (std::ranges::any_of(name, control)) return refuse("the name has control characters");
  if (name.starts_with('/')) return refuse("an absolute path");
  std::string safe;
  for (std::string_view rest = name; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    if (part == "..") return refuse("a path that leads out of its folder");
    if (part.empty() || part == ".") continue;
    safe += (safe.empty() ? "" : "/") + std::string(part);
  }
  return safe;
}

}  // namespace octavo_train
