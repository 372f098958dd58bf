// Reads a tar archive block by block; see tar.h.
// SPDX-License-Identifier: MIT
#include "train/formats/tar.h"

#include "train/base/status.h"
#include "train/formats/safetensors_format.h"
#include "train/formats/tar_header.h"
#include "train/io/little_endian.h"

#include <algorithm>
#include <optional>
#include <set>

namespace octavo_train {
namespace {

constexpr std::size_t kEntryLimit = 100'000;
constexpr std::uint64_t kLongNameLimit = 4096;
constexpr std::uint64_t kPaxLimit = 1 << 20;
constexpr std::uint64_t kPaddingLimit = 16 << 20;  // bytes of zeros after the end

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

class TarReader {
 public:
  explicit TarReader(std::span<const std::byte> archive) : archive_(archive) {}

  Result<std::vector<TarEntry>> read() {
    while (true) {
      const Result<bool> more = next();
      if (!more.ok()) return invalid_from(more.status());
      if (!*more) return std::move(entries_);
    }
  }

 private:
  [[nodiscard]] Status invalid_from(const Status& status) const {
    return placed("byte " + std::to_string(header_), status);
  }

  [[nodiscard]] std::span<const std::byte> rest() const { return archive_.subspan(at_); }

  // Reads one header and its entry. Returns false at the end of the archive.
  Result<bool> next() {
    header_ = at_;
    if (rest().size() < kTarBlock) return cut_short();
    const auto block = rest().first(kTarBlock);
    if (all_zero(block)) return end();
    Result<TarHeader> header = parse_tar_header(block);
    if (!header.ok()) return header.status();
    at_ += kTarBlock;
    const bool file = header->type == '0' || header->type == '\0' || header->type == '7';
    if (file && pending_.size) header->size = *pending_.size;
    const Result<std::span<const std::byte>> bytes = content(header->size);
    if (!bytes.ok()) return bytes.status();
    RETURN_IF_ERROR(take(*header, *bytes, file));
    return true;
  }

  Result<std::span<const std::byte>> content(std::uint64_t size) {
    if (size > rest().size()) {
      return Status::invalid("the entry has " + std::to_string(size) + " bytes, but only " +
                             std::to_string(rest().size()) + " follow: the archive is cut short");
    }
    const auto bytes = rest().first(static_cast<std::size_t>(size));
    const std::size_t padding = (kTarBlock - bytes.size() % kTarBlock) % kTarBlock;
    if (padding > rest().size() - bytes.size()) return cut_short();
    at_ += bytes.size() + padding;
    return bytes;
  }

  Status take(const TarHeader& header, std::span<const std::byte> bytes, bool file) {
    switch (header.type) {
      case 'x':
      case 'g':
        return take_pax(header, bytes);
      case 'L':
        return take_long_name(bytes);
      default:
        break;
    }
    const Result<std::string> name = safe_tar_name(pending_.path ? *pending_.path : header.name);
    if (!name.ok()) return name.status();
    const bool folder = header.type == '5' || (file && header.name.ends_with('/') && bytes.empty());
    pending_ = {};
    if (folder) return {};
    if (header.type == kSparseFile)
      return Status::unsupported("file " + quote_name(*name) + ": " + sparse_file().message());
    if (!file) {
      return Status::unsupported("file " + quote_name(*name) +
                                 ": a link, a device or another thing of type " +
                                 quote_name(std::string_view(&header.type, 1)) + ", expected a plain file");
    }
    if (name->empty()) return Status::invalid("a file without a name");
    if (!names_.insert(*name).second) return Status::invalid("file " + quote_name(*name) + ": given twice");
    if (entries_.size() == kEntryLimit) {
      return Status::invalid("more than " + std::to_string(kEntryLimit) + " files, which is the limit");
    }
    entries_.push_back({*name, bytes, header_});
    return {};
  }

  Status take_long_name(std::span<const std::byte> bytes) {
    if (bytes.size() > kLongNameLimit) return too_long("a file's name", bytes.size(), kLongNameLimit);
    const std::string_view text = as_text(bytes);
    return set_path(std::string(text.substr(0, text.find('\0'))));
  }

  Status take_pax(const TarHeader& header, std::span<const std::byte> bytes) {
    if (bytes.size() > kPaxLimit) return too_long("a pax header", bytes.size(), kPaxLimit);
    Result<PaxFields> fields = parse_pax(as_text(bytes));
    if (!fields.ok()) return fields.status();
    if (header.type == 'g') {
      if (!fields->path && !fields->size) return {};
      return Status::invalid("one name or size for all files in a pax header, expected one for each");
    }
    if (fields->size) pending_.size = fields->size;
    if (fields->path) {
      if (fields->path->size() > kLongNameLimit) {
        return too_long("a file's name", fields->path->size(), kLongNameLimit);
      }
      return set_path(std::move(*fields->path));
    }
    return {};
  }

  Status set_path(std::string path) {
    if (pending_.path) return Status::invalid("two long names for one file");
    pending_.path = std::move(path);
    return {};
  }

  static Status too_long(const char* what, std::uint64_t size, std::uint64_t limit) {
    return Status::invalid(std::string(what) + " of " + std::to_string(size) + " bytes, expected at most " +
                           std::to_string(limit));
  }
  static Status cut_short() { return Status::invalid("the archive is cut short"); }

  // Reads the end of the archive: two blocks of zeros, and more zeros that fill the last record.
  Result<bool> end() {
    if (pending_.path || pending_.size)
      return Status::invalid("a long name or a size without a file after it");
    if (rest().size() < 2 * kTarBlock) return cut_short();
    if (rest().size() > kPaddingLimit) return too_long("padding after the end", rest().size(), kPaddingLimit);
    const auto other = std::ranges::find_if(rest(), [](std::byte byte) { return byte != std::byte{0}; });
    if (other == rest().end()) return false;
    header_ = at_ + static_cast<std::size_t>(other - rest().begin());
    return Status::invalid("bytes after the end of the archive; the rest is unknown");
  }

  std::span<const std::byte> archive_;
  std::size_t at_ = 0;
  std::size_t header_ = 0;
  PaxFields pending_;  // for the next file
  std::set<std::string> names_;
  std::vector<TarEntry> entries_;
};

}  // namespace

Result<std::vector<TarEntry>> read_tar(std::span<const std::byte> archive) {
  return TarReader(archive).read();
}

Result<TarArchive> TarArchive::open(const std::string& path, std::uint64_t inflated_limit) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) return mapped.status();
  TarArchive archive;
  if (is_gzip(mapped->bytes())) {
    Result<HeapBytes> inflated = inflate_gzip(mapped->bytes(), inflated_limit);
    if (!inflated.ok()) return placed(path, inflated.status());
    archive.inflated_ = std::move(*inflated);
  } else {
    archive.file_ = std::move(*mapped);
  }
  const bool packed = !archive.inflated_.bytes().empty();
  Result<std::vector<TarEntry>> entries =
      read_tar(packed ? archive.inflated_.bytes() : archive.file_.bytes());
  if (!entries.ok()) return placed(path + (packed ? " (unpacked)" : ""), entries.status());
  archive.entries_ = std::move(*entries);
  return archive;
}

const TarEntry* TarArchive::find(std::string_view name) const {
  const auto found = std::ranges::find(entries_, name, &TarEntry::name);
  return found == entries_.end() ? nullptr : &*found;
}

}  // namespace octavo_train
