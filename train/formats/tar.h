// Archives of `tar`: ustar, with the long names of GNU tar and of pax, packed by gzip or not. Files are read
// through a memory map, so the entries of a plain archive cost no memory; an archive is hostile until open()
// has checked it. Nothing is unpacked to a disk. Links, devices, sparse files, names that lead out of a
// folder and two files of one name are errors.
//
//   auto archive = octavo::train::TarArchive::open("model.nemo");
//   if (archive.ok()) use(archive->find("model_config.yaml")->bytes);
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/gzip.h"
#include "train/io/mapped_file.h"
#include "train/io/output_file.h"

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

inline constexpr std::uint64_t kInflatedLimit = std::uint64_t{16} << 30;  // bytes of an archive under gzip

struct TarEntry {
  std::string name;  // without a leading `./`
  std::span<const std::byte> bytes;
  std::uint64_t header = 0;  // where its header begins, for messages
};

// The files of an archive that lies in memory, in its order. Errors begin with a byte of it.
Result<std::vector<TarEntry>> read_tar(std::span<const std::byte> archive);

class TarArchive {
 public:
  static Result<TarArchive> open(const std::string& path, std::uint64_t inflated_limit = kInflatedLimit);

  [[nodiscard]] std::span<const TarEntry> entries() const { return entries_; }
  [[nodiscard]] const TarEntry* find(std::string_view name) const;  // nullptr: none

 private:
  TarArchive() = default;

  MappedFile file_;
  HeapBytes inflated_;  // in place of the file, if that is compressed
  std::vector<TarEntry> entries_;
};

struct TarSource {
  std::string name;  // as it is to stand in the archive, at most 99 bytes: `./model_config.yaml`
  std::uint64_t size = 0;
  std::function<Status(const ByteSink&)> write;  // called once; gives `size` bytes
};

// Written beside its place, fsynced and renamed. Times and owners are zero, so equal contents give equal
// files.
Status write_tar(const std::string& path, std::span<const TarSource> sources);

}  // namespace octavo::train
