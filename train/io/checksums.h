// Reads and writes checksums.txt, which proves that a checkpoint is complete. Each file has one line `HASH
// SIZE NAME`, where HASH is the 128-bit XXH3 hash as xxh128sum prints it. The last line is for checksums.txt
// itself and covers the bytes before that line, so that a list without its end is detected.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

inline constexpr std::string_view kChecksumsName = "checksums.txt";

// Computes the 128-bit XXH3 hash of bytes that are added in pieces.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::string hex() const;  // 32 hexadecimal digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the 32 hexadecimal digits of the bytes' 128-bit XXH3 hash.
std::string xxh3_hex(std::span<const std::byte> bytes);
std::string xxh3_hex(std::string_view text);

struct FileChecksum {
  std::string hash;
  std::uint64_t size = 0;
  std::string name;
  friend bool operator==(const FileChecksum&, const FileChecksum&) = default;
};

std::string format_checksums(std::span<const FileChecksum> files);

// Parses the text of checksums.txt. Errors contain the line and what is wrong with it; `path` is the text's
// name in errors.
Result<std::vector<FileChecksum>> parse_checksums(std::string_view text, const std::string& path);

}  // namespace octavo_train
