// Parses unchecked headers of tar archives and of pax, reads an archive block by block, and writes archives
// that every tar program reads: ustar headers, and GNU tar's binary form for sizes that do not fit the octal
// digits. See tar.h.
// SPDX-License-Identifier: MIT
#include "train/formats/tar.h"

#include "train/base/text.h"
#include "train/formats/tensor_list.h"
#include "train/io/little_endian.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

namespace octavo_train {
namespace {

constexpr std::size_t kTarRecord = 20 * kTarBlock;  // archives are padded to complete records

// Fields of a header block.
struct TarField {
  std::size_t at;
  std::size_t size;
};
constexpr TarField kTarName{0, 100};
constexpr TarField kTarMode{100, 8};
constexpr TarField kTarOwner{108, 8};
constexpr TarField kTarGroup{116, 8};
constexpr TarField kTarSize{124, 12};
constexpr TarField kTarTime{136, 12};
constexpr TarField kTarSum{148, 8};
constexpr TarField kTarType{156, 1};
constexpr char kSparseFile = 'S';  // GNU tar's type of a sparse file; pax has a record for it
constexpr TarField kTarMagic{257, 6};
constexpr TarField kTarPrefix{345, 155};

// The fields that a pax header changes in the entry after it.
struct PaxFields {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size;
};

// Returns the error for a sparse file, whose bytes in the archive are not the file's bytes.
Status sparse_file() {
  return Status::unsupported("a sparse file, expected a plain file; pack the archive without --sparse");
}

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
  return parse_number<std::uint64_t>(text, 8);
}

Status set_pax(PaxFields& fields, std::string_view key, std::string_view value) {
  if (key == "path") {
    fields.path = std::string(value);
  } else if (key == "size") {
    fields.size = parse_number<std::uint64_t>(value);
    if (!fields.size || *fields.size > kSizeLimit)
      return invalid_error("size {} in a pax header, expected a number below 2^63", quote_name(value));
  } else if (key.starts_with("GNU.sparse")) {
    return sparse_file();
  }
  return {};
}

// Returns the checksum of a header block: the sum of its bytes, with the checksum field counted as blanks.
std::uint64_t tar_sum(std::span<const std::byte> block) {
  std::uint64_t sum = kTarSum.size * ' ';
  for (std::size_t i = 0; i < kTarBlock; ++i)
    if (i < kTarSum.at || i >= kTarSum.at + kTarSum.size) sum += std::to_integer<std::uint64_t>(block[i]);
  return sum;
}

// Parses records of `LENGTH KEY=VALUE\n`, where LENGTH counts the complete record.
Result<PaxFields> parse_pax(std::string_view text) {
  PaxFields fields;
  while (!text.empty()) {
    const std::size_t blank = text.find(' ');
    const std::optional<std::uint64_t> length =
        blank <= 20 ? parse_number<std::uint64_t>(text.substr(0, blank)) : std::optional<std::uint64_t>();
    const bool fits = length && *length <= text.size() && *length >= blank + 3;
    const std::string_view record =
        fits ? text.substr(blank + 1, static_cast<std::size_t>(*length) - blank - 1) : "";
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos || record.back() != '\n')
      return Status::invalid("a pax header that is not a list of `LENGTH KEY=VALUE`");
    const std::string_view value = record.substr(equals + 1, record.size() - equals - 2);
    RETURN_IF_ERROR(set_pax(fields, record.substr(0, equals), value));
    text.remove_prefix(static_cast<std::size_t>(*length));
  }
  return fields;
}

// Returns the name without a leading `./`, or an error if the name leads out of a folder or cannot be shown.
Result<std::string> safe_tar_name(std::string_view name) {
  const auto refuse = [&](const char* why) {
    return invalid_error("file {}: {}, expected a path inside the archive", quote_name(name), why);
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

constexpr std::size_t kTarEntryLimit = 100'000;
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
      if (!more.ok()) return with_context(fmt::format("byte {}", header_), more.status());
      if (!*more) return std::move(entries_);
    }
  }

 private:
  [[nodiscard]] std::span<const std::byte> rest() const { return archive_.subspan(at_); }

  // Reads one header and its entry. Returns false at the end of the archive.
  Result<bool> next() {
    header_ = at_;
    if (rest().size() < kTarBlock) return cut_short();
    const auto block = rest().first(kTarBlock);
    if (all_zero(block)) return end();
    ASSIGN_OR_RETURN(TarHeader header, parse_tar_header(block));
    at_ += kTarBlock;
    const bool file = header.type == '0' || header.type == '\0' || header.type == '7';
    if (file && pending_.size) header.size = *pending_.size;
    ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, content(header.size));
    RETURN_IF_ERROR(take(header, bytes, file));
    return true;
  }

  Result<std::span<const std::byte>> content(std::uint64_t size) {
    if (size > rest().size()) {
      return invalid_error("the entry has {} bytes, but only {} follow: the archive is cut short", size,
                           rest().size());
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
    ASSIGN_OR_RETURN(const std::string name, safe_tar_name(pending_.path ? *pending_.path : header.name));
    const bool folder = header.type == '5' || (file && header.name.ends_with('/') && bytes.empty());
    pending_ = {};
    if (folder) return {};
    if (header.type == kSparseFile)
      return unsupported_error("file {}: {}", quote_name(name), sparse_file().message());
    if (!file) {
      return unsupported_error("file {}: a link, a device or another thing of type {}, expected a plain file",
                               quote_name(name), quote_name(std::string_view(&header.type, 1)));
    }
    if (name.empty()) return Status::invalid("a file without a name");
    if (!names_.insert(name).second) return invalid_error("file {}: given twice", quote_name(name));
    if (entries_.size() == kTarEntryLimit)
      return invalid_error("more than {} files, which is the limit", kTarEntryLimit);
    entries_.push_back({name, bytes, header_});
    return {};
  }

  Status take_long_name(std::span<const std::byte> bytes) {
    if (bytes.size() > kLongNameLimit) return too_long("a file's name", bytes.size(), kLongNameLimit);
    const std::string_view text = as_text(bytes);
    return set_path(std::string(text.substr(0, text.find('\0'))));
  }

  Status take_pax(const TarHeader& header, std::span<const std::byte> bytes) {
    if (bytes.size() > kPaxLimit) return too_long("a pax header", bytes.size(), kPaxLimit);
    ASSIGN_OR_RETURN(PaxFields fields, parse_pax(as_text(bytes)));
    if (header.type == 'g') {
      if (!fields.path && !fields.size) return {};
      return Status::invalid("one name or size for all files in a pax header, expected one for each");
    }
    if (fields.size) pending_.size = fields.size;
    if (fields.path) {
      if (fields.path->size() > kLongNameLimit)
        return too_long("a file's name", fields.path->size(), kLongNameLimit);
      return set_path(std::move(*fields.path));
    }
    return {};
  }

  Status set_path(std::string path) {
    if (pending_.path) return Status::invalid("two long names for one file");
    pending_.path = std::move(path);
    return {};
  }

  static Status too_long(const char* what, std::uint64_t size, std::uint64_t limit) {
    return invalid_error("{} of {} bytes, expected at most {}", what, size, limit);
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

using Block = std::array<std::byte, kTarBlock>;

void put_text(Block& block, TarField field, std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) block[field.at + i] = static_cast<std::byte>(text[i]);
}

void put_octal(Block& block, TarField field, std::uint64_t value) {
  for (std::size_t i = field.size - 1; i > 0; --i, value >>= 3)
    block[field.at + i - 1] = static_cast<std::byte>('0' + (value & 7));
}

void put_size(Block& block, std::uint64_t size) {
  constexpr std::uint64_t kOctalEnd = std::uint64_t{1} << (3 * (kTarSize.size - 1));
  if (size < kOctalEnd) return put_octal(block, kTarSize, size);
  block[kTarSize.at] = std::byte{0x80};
  for (std::size_t i = kTarSize.size - 1; size != 0; --i, size >>= 8)
    block[kTarSize.at + i] = static_cast<std::byte>(size & 0xff);
}

Status check_source(const TarSource& source, std::set<std::string>& names) {
  ASSIGN_OR_RETURN(const std::string name, safe_tar_name(source.name));
  const std::string what = "file " + quote_name(source.name) + ": ";
  if (name.empty() || source.name.size() >= kTarName.size) {
    return invalid_error("{}the name has {} bytes, expected 1 to {}", what, source.name.size(),
                         kTarName.size - 1);
  }
  if (!names.insert(name).second) return Status::invalid(what + "given twice; names must differ");
  if (!source.write) return Status::invalid(what + "has no function that writes its bytes");
  if (source.size > INT64_MAX / 2) return Status::invalid(what + "too large for an archive");
  return {};
}

Status write_zeros(OutputFile& file, std::uint64_t count) {
  static constexpr Block kZeros{};
  for (; count > 0; count -= std::min<std::uint64_t>(count, kTarBlock)) {
    const auto piece =
        std::span(kZeros).first(static_cast<std::size_t>(std::min<std::uint64_t>(count, kTarBlock)));
    RETURN_IF_ERROR(file.write(piece));
  }
  return {};
}

// Returns the number of padding bytes that complete the last piece of `size` bytes.
std::uint64_t padding_of(std::uint64_t size, std::uint64_t piece) { return (piece - size % piece) % piece; }

Status write_entry(OutputFile& file, const TarSource& source) {
  const std::string what = "file " + quote_name(source.name);
  RETURN_IF_ERROR(file.write(make_tar_header(source.name, source.size)));
  std::uint64_t written = 0;
  const ByteSink sink = [&](std::span<const std::byte> bytes) -> Status {
    written += bytes.size();
    if (written > source.size) return invalid_error("gives more than the {} bytes of its size", source.size);
    return file.write(bytes);
  };
  RETURN_IF_ERROR(with_context(what, source.write(sink)));
  if (written != source.size)
    return with_context(what, invalid_error("{} bytes given, expected {}", written, source.size));
  return write_zeros(file, padding_of(source.size, kTarBlock));
}

}  // namespace

Result<TarHeader> parse_tar_header(std::span<const std::byte> block) {
  const std::string_view magic = as_text(block.subspan(kTarMagic.at, kTarMagic.size));
  if (magic != std::string_view("ustar\0", 6) && magic != "ustar ") {
    return Status::invalid(
        "no header of a tar archive (ustar, GNU or pax); the file is torn or of another format");
  }
  if (number_field(block, kTarSum) != tar_sum(block))
    return Status::invalid("the header's checksum is wrong; the archive is damaged");
  const std::optional<std::uint64_t> size = number_field(block, kTarSize);
  if (!size) return Status::invalid("the header's size is not a number of 0 or more below 2^63");
  TarHeader header;
  header.size = *size;
  header.type = static_cast<char>(block[kTarType.at]);
  header.name = text_field(block, kTarName);
  // GNU tar stores other data where ustar has the first part of a long name.
  if (magic != "ustar ") {
    if (const std::string_view prefix = text_field(block, kTarPrefix); !prefix.empty())
      header.name = std::string(prefix) + "/" + header.name;
  }
  return header;
}

Result<std::vector<TarEntry>> read_tar(std::span<const std::byte> archive) {
  return TarReader(archive).read();
}

Result<TarArchive> TarArchive::open(const std::string& path, std::uint64_t inflated_limit) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  TarArchive archive;
  if (is_gzip(mapped.bytes())) {
    ASSIGN_OR_RETURN(HeapBytes inflated, with_context(path, inflate_gzip(mapped.bytes(), inflated_limit)));
    archive.inflated_ = std::move(inflated);
  } else {
    archive.file_ = std::move(mapped);
  }
  const bool packed = !archive.inflated_.bytes().empty();
  ASSIGN_OR_RETURN(std::vector<TarEntry> entries,
                   with_context(path + (packed ? " (unpacked)" : ""),
                                read_tar(packed ? archive.inflated_.bytes() : archive.file_.bytes())));
  archive.entries_ = std::move(entries);
  return archive;
}

const TarEntry* TarArchive::find(std::string_view name) const {
  const auto found = std::ranges::find(entries_, name, &TarEntry::name);
  return found == entries_.end() ? nullptr : &*found;
}

std::array<std::byte, kTarBlock> make_tar_header(std::string_view name, std::uint64_t size) {
  Block block{};
  put_text(block, kTarName, name);
  put_octal(block, kTarMode, 0644);
  put_octal(block, kTarOwner, 0);
  put_octal(block, kTarGroup, 0);
  put_size(block, size);
  put_octal(block, kTarTime, 0);
  put_text(block, kTarType, "0");
  put_text(block, kTarMagic, std::string_view("ustar\00000", 8));  // a zero byte, then the version
  // The checksum has six digits, a zero byte and a blank, as every tar program writes it.
  put_octal(block, {kTarSum.at, kTarSum.size - 1}, tar_sum(block));
  block[kTarSum.at + kTarSum.size - 1] = std::byte{' '};
  return block;
}

Status write_tar(const std::string& path, std::span<const TarSource> sources) {
  std::set<std::string> names;
  std::uint64_t size = 2 * kTarBlock;
  for (const TarSource& source : sources) {
    RETURN_IF_ERROR(with_context(path, check_source(source, names)));
    const std::uint64_t entry = kTarBlock + source.size + padding_of(source.size, kTarBlock);
    if (entry > INT64_MAX - size)
      return Status::invalid(path + ": the files have more than 2^63 bytes together");
    size += entry;
  }
  const std::uint64_t padding = padding_of(size, kTarRecord);
  return write_atomically(path, size + padding, [&](OutputFile& file) -> Status {
    for (const TarSource& source : sources) RETURN_IF_ERROR(with_context(path, write_entry(file, source)));
    return write_zeros(file, 2 * kTarBlock + padding);
  });
}

}  // namespace octavo_train
