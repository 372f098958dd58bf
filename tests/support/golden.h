// Golden files: named sections of named byte strings in hexadecimal, read completely and compared by name.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace test {

class Golden {
 public:
  // Reads tests/golden/<name>.txt. With OCTAVO_UPDATE_GOLDEN=1 nothing is read, and save() writes what was
  // recorded.
  explicit Golden(std::string name);

  // Stores the bytes for save().
  void record(const std::string& key, std::span<const std::byte> bytes);

  // Returns "" if the file has exactly these bytes under this key, otherwise what is different.
  [[nodiscard]] std::string compare(const std::string& key, std::span<const std::byte> bytes) const;

  // Returns the keys of the file that were not recorded: a shrinking test is a failure, too.
  [[nodiscard]] std::string missing() const;

  static bool updating();
  void save(const std::string& comment) const;

 private:
  std::string path_;
  std::map<std::string, std::string> stored_, recorded_;
};

}  // namespace test
