// Reads a zip archive from its end, where its directory is, and writes local headers, data descriptors, the
// directory and its end record. See zip.h.
// SPDX-License-Identifier: MIT
#include "train/formats/zip.h"

#include "train/formats/tensor_list.h"
#include "train/io/little_endian.h"

#include <zlib.h>

#include <algorithm>
#include <optional>

namespace octavo_train {
namespace {

constexpr std::size_t kZipEntryLimit = 1'000'000;
constexpr std::uint16_t kEncrypted = 1;
constexpr std::uint16_t kSizesFollow = 8;

std::uint64_t u16(Bytes bytes, std::size_t at) { return load_little<std::uint16_t>(bytes, at); }
std::uint64_t u32(Bytes bytes, std::size_t at) { return load_little<std::uint32_t>(bytes, at); }
std::uint64_t u64(Bytes bytes, std::size_t at) { return load_little<std::uint64_t>(bytes, at); }

struct Directory {
  std::uint64_t at = 0;
  std::uint64_t size = 0;
  std::uint64_t count = 0;
};

struct CentralEntry {
  std::string_view name;
  std::uint64_t place = 0;  // byte offset of this record
  std::uint64_t size = 0;
  std::uint64_t header = 0;
};

Status no_directory_end() {
  return Status::invalid("no end of a zip archive: the file is torn or of another format");
}

// Returns the byte offset of the end record. A comment that fills the file may follow it.
std::optional<std::size_t> find_end(Bytes file) {
  if (file.size() < kZipEndSize) return std::nullopt;
  const std::size_t last = file.size() - kZipEndSize;
  for (std::size_t back = 0; back <= std::min<std::size_t>(last, 0xffff); ++back) {
    const std::size_t at = last - back;
    if (u32(file, at) == kZipEnd && u16(file, at + 20) == back) return at;
  }
  return std::nullopt;
}

Result<Directory> find_directory(Bytes file) {
  const std::optional<std::size_t> found = find_end(file);
  if (!found) return no_directory_end();
  std::size_t end = *found;
  if (u16(file, end + 4) != 0 || u16(file, end + 6) != 0)
    return invalid_at(end, "a zip archive in several parts, expected one");
  Directory directory{u32(file, end + 16), u32(file, end + 12), u16(file, end + 10)};
  if (end >= kZip64LocatorSize && u32(file, end - kZip64LocatorSize) == kZip64Locator) {
    const std::size_t locator = end - kZip64LocatorSize;
    const std::uint64_t at = u64(file, locator + 8);
    if (locator < kZip64EndSize || at > locator - kZip64EndSize ||
        u32(file, static_cast<std::size_t>(at)) != kZip64End)
      return invalid_at(locator, "there is no zip64 record at byte {}, where its locator points", at);
    end = static_cast<std::size_t>(at);
    directory = {u64(file, end + 48), u64(file, end + 40), u64(file, end + 32)};
  }
  if (directory.at > end || directory.size != end - directory.at) {
    return invalid_at(end, "the directory of {} bytes at byte {} does not end here", directory.size,
                      directory.at);
  }
  if (directory.count > std::min<std::uint64_t>(directory.size / kZipCentralSize, kZipEntryLimit)) {
    return invalid_at(end, "{} entries do not fit the directory of {} bytes, or the limit of {}",
                      directory.count, directory.size, kZipEntryLimit);
  }
  return directory;
}

// Reads the numbers that did not fit 32 bits, in the order that the format defines.
Status read_extra64(Bytes extra, std::span<std::uint64_t* const> wanted) {
  while (!wanted.empty()) {
    if (extra.size() < 4) return Status::invalid("the zip64 field is missing");
    const auto size = static_cast<std::size_t>(u16(extra, 2));
    if (size > extra.size() - 4) return Status::invalid("an extra field is longer than the record");
    if (u16(extra, 0) != kZip64Extra) {
      extra = extra.subspan(4 + size);
      continue;
    }
    if (size < 8 * wanted.size()) return Status::invalid("the zip64 field is too short");
    for (std::size_t i = 0; i < wanted.size(); ++i) *wanted[i] = u64(extra, 4 + 8 * i);
    return {};
  }
  return {};
}

// Parses the record at the start of `rest` and removes it from `rest`.
Result<CentralEntry> next_entry(Bytes& rest) {
  if (rest.size() < kZipCentralSize || u32(rest, 0) != kZipCentral)
    return Status::invalid("no record of the zip archive's directory; the archive is damaged");
  const auto name_size = static_cast<std::size_t>(u16(rest, 28));
  const auto extra_size = static_cast<std::size_t>(u16(rest, 30));
  const std::size_t size = kZipCentralSize + name_size + extra_size + static_cast<std::size_t>(u16(rest, 32));
  if (size > rest.size()) return Status::invalid("a record is longer than the directory");
  CentralEntry entry;
  entry.name = as_text(rest.subspan(kZipCentralSize, name_size));
  const std::string what = "file " + quote_name(entry.name) + ": ";
  if (u16(rest, 8) & kEncrypted) return Status::unsupported(what + "encrypted, expected a plain file");
  if (u16(rest, 10) != 0) {
    return unsupported_error("{}compressed by method {}, expected stored bytes as torch.save writes them",
                             what, u16(rest, 10));
  }
  std::uint64_t packed = u32(rest, 20);
  entry.size = u32(rest, 24);
  entry.header = u32(rest, 42);
  std::vector<std::uint64_t*> wanted;
  for (std::uint64_t* number : {&entry.size, &packed, &entry.header})
    if (*number == kZipIn64) wanted.push_back(number);
  const Bytes extra = rest.subspan(kZipCentralSize + name_size, extra_size);
  if (Status status = read_extra64(extra, wanted); !status.ok())
    return Status::invalid(what + status.message());
  if (packed != entry.size)
    return Status::invalid(what + "stored bytes whose compressed and uncompressed sizes differ");
  rest = rest.subspan(size);
  return entry;
}

// Returns the entry with its bytes. `data` is the part of the archive before the directory.
Result<ZipEntry> find_bytes(Bytes data, const CentralEntry& entry) {
  const std::string what = "file " + quote_name(entry.name) + ": ";
  if (data.size() < kZipLocalSize || entry.header > data.size() - kZipLocalSize ||
      u32(data, static_cast<std::size_t>(entry.header)) != kZipLocal)
    return invalid_at(entry.place, "{}no header at byte {}", what, entry.header);
  const Bytes local = data.subspan(static_cast<std::size_t>(entry.header));
  const auto name_size = static_cast<std::size_t>(u16(local, 26));
  const std::size_t begin = kZipLocalSize + name_size + static_cast<std::size_t>(u16(local, 28));
  if (begin > local.size() || entry.size > local.size() - begin)
    return invalid_at(entry.header, "{}{} bytes do not fit the archive", what, entry.size);
  if (as_text(local.subspan(kZipLocalSize, name_size)) != entry.name || u16(local, 8) != 0)
    return invalid_at(entry.header, "{}the name or the method in its header differs from the directory",
                      what);
  const std::uint64_t size = u32(local, 22);
  if (!(u16(local, 6) & kSizesFollow) && size != kZipIn64 && size != entry.size) {
    return invalid_at(entry.header, "{}{} bytes by its header, but {} by the directory", what, size,
                      entry.size);
  }
  return ZipEntry{entry.name, local.subspan(begin, static_cast<std::size_t>(entry.size)), entry.header};
}

// Checks that no entries overlap, each from its header to the end of its bytes. Otherwise a small archive
// could contain large files many times.
Status check_overlaps(Bytes archive, std::vector<ZipEntry>& entries) {
  std::ranges::sort(entries, {}, &ZipEntry::header);
  std::uint64_t end = 0;
  for (const ZipEntry& entry : entries) {
    if (entry.header < end)
      return invalid_at(entry.header, "file {}: overlaps the file before", quote_name(entry.name));
    end = static_cast<std::uint64_t>(entry.bytes.data() - archive.data()) + entry.bytes.size();
  }
  return {};
}

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint16_t kFlags = 0x0808;  // sizes follow the bytes; names are UTF-8

std::uint16_t version_of(bool zip64) { return zip64 ? 45 : 20; }

std::uint32_t in32(std::uint64_t number) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(number, kZipIn64));
}

}  // namespace

bool is_zip(Bytes file) { return file.size() >= 4 && u32(file, 0) == kZipLocal; }

Result<std::vector<ZipEntry>> read_zip(Bytes archive) {
  ASSIGN_OR_RETURN(const Directory directory, find_directory(archive));
  const Bytes data = archive.first(static_cast<std::size_t>(directory.at));
  Bytes rest = archive.subspan(data.size(), static_cast<std::size_t>(directory.size));
  std::vector<ZipEntry> entries;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    const std::uint64_t place = directory.at + directory.size - rest.size();
    ASSIGN_OR_RETURN(CentralEntry central, with_context(fmt::format("byte {}", place), next_entry(rest)));
    central.place = place;
    ASSIGN_OR_RETURN(const ZipEntry entry, find_bytes(data, central));
    entries.push_back(entry);
  }
  if (!rest.empty()) {
    return invalid_at(directory.at + directory.size - rest.size(),
                      "the directory has more than its {} entries", directory.count);
  }
  RETURN_IF_ERROR(check_overlaps(archive, entries));
  std::ranges::sort(entries, {}, &ZipEntry::name);
  const auto twin = std::ranges::adjacent_find(entries, {}, &ZipEntry::name);
  if (twin != entries.end()) return invalid_at(twin->header, "file {}: given twice", quote_name(twin->name));
  return entries;
}

const ZipEntry* find_entry(std::span<const ZipEntry> entries, std::string_view name) {
  const auto found = std::ranges::lower_bound(entries, name, {}, &ZipEntry::name);
  return found == entries.end() || found->name != name ? nullptr : &*found;
}

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
  for (int i = 0; i < 2; ++i)
    if (entry.size >= kZipIn64)
      append_little(descriptor, entry.size);
    else
      append_little(descriptor, static_cast<std::uint32_t>(entry.size));
  return put(descriptor);
}

Status ZipWriter::finish() {
  const std::uint64_t directory = at_;
  for (const Entry& entry : entries_) RETURN_IF_ERROR(put(central(entry)));
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
