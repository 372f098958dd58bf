// checksums.txt, the proof that a checkpoint is whole: a line `HASH SIZE NAME` per file, where HASH is the
// XXH3 of 128 bits as xxh128sum prints it. The last line is of checksums.txt itself: of the bytes before that
// line, so that a list that lost its end is noticed.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

inline constexpr std::string_view kChecksumsName = "checksums.txt";

// XXH3, 128 bits, of bytes that come in pieces.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::string hex() const;  // 32 digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct FileChecksum {
  std::string hash;
  std::uint64_t size = 0;
  std::string name;
  friend bool operator==(const FileChecksum&, const FileChecksum&) = default;
};

std::string format_checksums(std::span<const FileChecksum> files);

// Errors say the line and what is wrong with it. `path` is what they call the text.
Result<std::vector<FileChecksum>> parse_checksums(std::string_view text, const std::string& path);

}  // namespace octavo::train
