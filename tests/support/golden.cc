// See golden.h. A line is `key = hex`, wrapped onto indented lines; `#` starts a comment.
// SPDX-License-Identifier: MIT
#include "tests/support/golden.h"

#include <cstdlib>
#include <fstream>
#include <string_view>

#ifndef OCTAVO_TEST_GOLDEN_DIR
#error "OCTAVO_TEST_GOLDEN_DIR: the build must name the folder of the golden files"
#endif

namespace test {
namespace {

constexpr std::size_t kLine = 96;

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte) >> 4];
    text += kDigits[std::to_integer<std::size_t>(byte) & 15];
  }
  return text;
}

}  // namespace

Golden::Golden(std::string name)
    : path_(std::string(OCTAVO_TEST_GOLDEN_DIR) + "/" + std::move(name) + ".txt") {
  if (updating()) return;
  std::ifstream file(path_);
  std::string line;
  std::string* value = nullptr;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t equals = line.find(" =");
    if (equals != std::string::npos) {
      value = &stored_[line.substr(0, equals)];
    } else if (value != nullptr) {
      *value += line.substr(line.find_first_not_of(' '));
    }
  }
}

void Golden::record(const std::string& key, std::span<const std::byte> bytes) { recorded_[key] = hex(bytes); }

std::string Golden::compare(const std::string& key, std::span<const std::byte> bytes) const {
  const auto found = stored_.find(key);
  if (found == stored_.end()) return path_ + ": no entry '" + key + "'";
  const std::string got = hex(bytes);
  if (got == found->second) return "";
  std::size_t at = 0;
  while (at < got.size() && at < found->second.size() && got[at] == found->second[at]) ++at;
  return path_ + ": '" + key + "' differs from byte " + std::to_string(at / 2) + ": got " +
         got.substr(at & ~1u, 16) + ", stored " + found->second.substr(at & ~1u, 16);
}

std::string Golden::missing() const {
  for (const auto& [key, value] : stored_) {
    if (!recorded_.contains(key)) return path_ + ": '" + key + "' is no longer produced";
  }
  return "";
}

bool Golden::updating() {
  const char* text = std::getenv("OCTAVO_UPDATE_GOLDEN");
  return text != nullptr && text[0] == '1';
}

void Golden::save(const std::string& comment) const {
  std::ofstream file(path_);
  file << "# " << comment << "\n# Written by golden_test with OCTAVO_UPDATE_GOLDEN=1; see README.md here.\n";
  for (const auto& [key, value] : recorded_) {
    file << key << " =\n";
    for (std::size_t at = 0; at < value.size(); at += kLine) file << "  " << value.substr(at, kLine) << "\n";
  }
}

}  // namespace test
