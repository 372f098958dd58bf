// Writes tar archives that every tar program reads: ustar headers, and GNU tar's binary form for sizes that
// do not fit the octal digits.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/formats/safetensors_format.h"
#include "train/formats/tar.h"
#include "train/formats/tar_header.h"
#include "train/io/little_endian.h"
#include "train/io/output_file.h"

#include <algorithm>
#include <array>
#include <set>

namespace octavo_train {
namespace {

using Block = std::array<std::byte, kTarBlock>;

void put_text(Block& block, TarField field, std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) block[field.at + i] = static_cast<std::byte>(text[i]);
}

void put_octal(Block& block, TarField field, std::uint64_t value) {
  for (std::size_t i = field.size - 1; i > 0; --i, value >>= 3) {
    block[field.at + i - 1] = static_cast<std::byte>('0' + (value & 7));
  }
}

void put_size(Block& block, std::uint64_t size) {
  constexpr std::uint64_t kOctalEnd = std::uint64_t{1} << (3 * (kTarSize.size - 1));
  if (size < kOctalEnd) return put_octal(block, kTarSize, size);
  block[kTarSize.at] = std::byte{0x80};
  for (std::size_t i = kTarSize.size - 1; size != 0; --i, size >>= 8) {
    block[kTarSize.at + i] = static_cast<std::byte>(size & 0xff);
  }
}

Status check_source(const TarSource& source, std::set<std::string>& names) {
  const Result<std::string> name = safe_tar_name(source.name);
  if (!name.ok()) return name.status();
  const std::string what = "file " + quote_name(source.name) + ": ";
  if (name->empty() || source.name.size() >= kTarName.size) {
    return Status::invalid(what + "the name has " + std::to_string(source.name.size()) +
                           " bytes, expected 1 to " + std::to_string(kTarName.size - 1));
  }
  if (!names.insert(*name).second) return Status::invalid(what + "given twice; names must differ");
  if (!source.write) return Status::invalid(what + "has no function that gives its bytes");
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
    if (written > source.size)
      return Status::invalid("gives more than the " + std::to_string(source.size) + " bytes of its size");
    return file.write(bytes);
  };
  if (Status status = source.write(sink); !status.ok()) return placed(what, status);
  if (written != source.size) {
    return placed(what, Status::invalid(std::to_string(written) + " bytes given, expected " +
                                        std::to_string(source.size)));
  }
  return write_zeros(file, padding_of(source.size, kTarBlock));
}

}  // namespace

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
    if (Status status = check_source(source, names); !status.ok()) return placed(path, status);
    const std::uint64_t entry = kTarBlock + source.size + padding_of(source.size, kTarBlock);
    if (entry > INT64_MAX - size)
      return Status::invalid(path + ": the files have more than 2^63 bytes together");
    size += entry;
  }
  const std::uint64_t padding = padding_of(size, kTarRecord);
  const Result<std::string> partial = partial_path(path);
  if (!partial.ok()) return partial.status();
  Result<OutputFile> file = OutputFile::create(*partial, {0, size + padding});
  if (!file.ok()) return file.status();
  for (const TarSource& source : sources) {
    if (Status status = write_entry(*file, source); !status.ok()) return placed(path, status);
  }
  RETURN_IF_ERROR(write_zeros(*file, 2 * kTarBlock + padding));
  return file->finish_as(path);
}

}  // namespace octavo_train
