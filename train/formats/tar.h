// Reads and writes tar archives: ustar, with the long names of GNU tar and of pax. An archive that is read
// may be compressed with gzip. Files are read through a memory map, so the entries of an uncompressed archive
// need no memory. An archive is untrusted until open() has checked it. Nothing is extracted to a disk. Links,
// devices, sparse files, names that lead out of a folder and duplicate names are errors.
//
//   auto archive = octavo_train::TarArchive::open("model.nemo");
//   if (archive.ok()) use(archive->find("model_config.yaml")->bytes);
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/gzip.h"
#include "train/io/files.h"
#include "train/io/output_file.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

inline constexpr std::size_t kTarBlock = 512;

struct TarHeader {
  std::string name;
  std::uint64_t size = 0;
  char type = '0';
};

// Returns the header of a plain file. REQUIRES: the name fits its field.
std::array<std::byte, kTarBlock> make_tar_header(std::string_view name, std::uint64_t size);

// REQUIRES: `block` is one block, and not all of its bytes are zero.
Result<TarHeader> parse_tar_header(std::span<const std::byte> block);

inline constexpr std::uint64_t kInflatedLimit = std::uint64_t{16} << 30;  // bytes of a decompressed archive

struct TarEntry {
  std::string name;  // without a leading `./`
  std::span<const std::byte> bytes;
  std::uint64_t header = 0;  // byte offset of its header, for messages
};

// Returns the files of an archive in memory, in the order of the archive. Errors begin with a byte offset in
// the archive.
Result<std::vector<TarEntry>> read_tar(std::span<const std::byte> archive);

class TarArchive {
 public:
  static Result<TarArchive> open(const std::string& path, std::uint64_t inflated_limit = kInflatedLimit);

  [[nodiscard]] std::span<const TarEntry> entries() const { return entries_; }
  [[nodiscard]] const TarEntry* find(std::string_view name) const;  // nullptr if there is none

 private:
  TarArchive() = default;

  MappedFile file_;
  HeapBytes inflated_;  // used instead of `file_` if the file is compressed
  std::vector<TarEntry> entries_;
};

struct TarSource {
  std::string name;  // name in the archive, at most 99 bytes: `./model_config.yaml`
  std::uint64_t size = 0;
  std::function<Status(const ByteSink&)> write;  // called once; must write `size` bytes
};

// Writes an archive to a partial file in the same folder, which is fsynced and renamed. Times and owners are
// zero, so equal contents give equal files.
Status write_tar(const std::string& path, std::span<const TarSource> sources);

}  // namespace octavo_train
