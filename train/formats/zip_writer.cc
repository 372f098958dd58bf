// Writes local headers, data descriptors, the directory and its end record; see zip_writer.h.
// SPDX-License-Identifier: MIT
#include "train/formats/zip_writer.h"

#include "train/base/status.h"
#include "train/formats/zip.h"
#include "train/io/little_endian.h"

#include <zlib.h>

#include <algorithm>

namespace octavo_train {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint16_t kFlags = 0x0808;  // sizes follow the bytes; names are UTF-8

std::uint16_t version_of(bool zip64) { return zip64 ? 45 : 20; }

std::uint32_t in32(std::uint64_t number) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(number, kZipIn64));
}

}  // namespace

Status ZipWriter::begin(const std::string& name, std::uint64_t size) {
  entries_.push_back({name, size, at_, 0});
  const bool large = size >= kZipIn64;
  std::string extra;
  if (large) {
    append_little(extra, kZip64Extra);
    append_little(extra, std::uint16_t{16});
    extra.append(16, '\0');
  }
  // Padding as in torch: a field `FB` whose content is ignored.
  const std::uint64_t bare = at_ + kZipLocalSize + name.size() + extra.size() + 4;
  const auto padding = static_cast<std::uint16_t>((kAlignment - bare % kAlignment) % kAlignment);
  extra += "FB";
  append_little(extra, padding);
  extra.append(padding, 'Z');
  std::string header;
  append_little(header, kZipLocal);
  append_little(header, version_of(large));
  append_little(header, kFlags);
  header.append(18, '\0');  // stored; time, date, CRC and sizes are 0
  append_little(header, static_cast<std::uint16_t>(name.size()));
  append_little(header, static_cast<std::uint16_t>(extra.size()));
  return put(header + name + extra);
}

Status ZipWriter::add(std::span<const std::byte> bytes) {
  std::uint32_t& crc = entries_.back().crc;
  for (std::span<const std::byte> rest = bytes; !rest.empty();) {
    const auto piece = rest.first(std::min<std::size_t>(rest.size(), 1 << 20));
    crc = static_cast<std::uint32_t>(
        crc32(crc, reinterpret_cast<const Bytef*>(piece.data()), static_cast<uInt>(piece.size())));
    rest = rest.subspan(piece.size());
  }
  return put(bytes);
}

Status ZipWriter::end() {
  const Entry& entry = entries_.back();
  std::string descriptor;
  append_little(descriptor, kZipDescriptor);
  append_little(descriptor, entry.crc);
  for (int i = 0; i < 2; ++i) {
    if (entry.size >= kZipIn64) {
      append_little(descriptor, entry.size);
    } else {
      append_little(descriptor, static_cast<std::uint32_t>(entry.size));
    }
  }
  return put(descriptor);
}

Status ZipWriter::finish() {
  const std::uint64_t directory = at_;
  for (const Entry& entry : entries_) {
    RETURN_IF_ERROR(put(central(entry)));
  }
  const std::uint64_t end = at_;
  const std::uint64_t count = entries_.size();
  std::string text;
  append_little(text, kZip64End);
  append_little(text, std::uint64_t{kZip64EndSize - 12});
  append_little(text, version_of(true));
  append_little(text, version_of(true));
  text.append(8, '\0');  // one disk
  for (const std::uint64_t number : {count, count, end - directory, directory}) append_little(text, number);
  append_little(text, kZip64Locator);
  text.append(4, '\0');
  append_little(text, end);
  append_little(text, std::uint32_t{1});
  append_little(text, kZipEnd);
  text.append(4, '\0');
  for (int i = 0; i < 2; ++i)
    append_little(text, static_cast<std::uint16_t>(std::min<std::uint64_t>(count, 0xffff)));
  append_little(text, in32(end - directory));
  append_little(text, in32(directory));
  text.append(2, '\0');
  return put(text);
}

std::string ZipWriter::central(const Entry& entry) {
  std::string numbers;
  if (entry.size >= kZipIn64) {
    append_little(numbers, entry.size);
    append_little(numbers, entry.size);
  }
  if (entry.header >= kZipIn64) append_little(numbers, entry.header);
  std::string extra;
  if (!numbers.empty()) {
    append_little(extra, kZip64Extra);
    append_little(extra, static_cast<std::uint16_t>(numbers.size()));
    extra += numbers;
  }
  std::string record;
  append_little(record, kZipCentral);
  append_little(record, version_of(!extra.empty()));
  append_little(record, version_of(!extra.empty()));
  append_little(record, kFlags);
  record.append(6, '\0');  // stored; time and date
  append_little(record, entry.crc);
  append_little(record, in32(entry.size));
  append_little(record, in32(entry.size));
  append_little(record, static_cast<std::uint16_t>(entry.name.size()));
  append_little(record, static_cast<std::uint16_t>(extra.size()));
  record.append(10, '\0');  // no comment, one disk, no attributes
  append_little(record, in32(entry.header));
  return record + entry.name + extra;
}

Status ZipWriter::put(std::span<const std::byte> bytes) {
  at_ += bytes.size();
  return sink_ == nullptr ? Status() : (*sink_)(bytes);
}

Status ZipWriter::put(const std::string& text) { return put(std::as_bytes(std::span(text))); }

}  // namespace octavo_train
