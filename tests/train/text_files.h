// Files for the tests of train/data, in a folder that is removed at the end.
// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace octavo_train {

class TextFiles {
 public:
  TextFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "octavo_data_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  TextFiles(const TextFiles&) = delete;
  TextFiles& operator=(const TextFiles&) = delete;
  ~TextFiles() { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

 private:
  std::filesystem::path folder_;
};

// Returns bytes from which a window's position can be determined: no two of its 4-byte pieces are equal.
inline std::string numbered(std::size_t size) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t word = i / 4 * 0x9E3779B1U;
    out[i] = static_cast<char>(word >> (i % 4 * 8) & 0xFF);
  }
  return out;
}

}  // namespace octavo_train
