// See paths.h. This file calls the operating system directly, because std::filesystem is incompatible with
// LibTorch's wheels (train/io/files.h).
// SPDX-License-Identifier: MIT
#include "train/config/paths.h"

#include "train/config/schema.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <iterator>
#include <string_view>
#include <vector>

namespace octavo_train {
namespace {

constexpr std::string_view kPatternMarks = "*?[";

bool is_relative(const std::string& path) { return !path.starts_with('/'); }

bool is_there(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0;
}

bool has_match(const std::string& pattern) {
  glob_t found{};
  const bool any = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0 && found.gl_pathc > 0;
  ::globfree(&found);
  return any;
}

// Returns an empty string if the working directory cannot be determined.
std::string working_directory() {
  std::array<char, PATH_MAX> folder{};
  return ::getcwd(folder.data(), folder.size()) == nullptr ? std::string() : folder.data();
}

// Escapes the pattern characters in a folder's name, so that they are literal in a pattern.
std::string as_letters(std::string_view folder) {
  std::string out;
  for (const char c : folder) {
    if (c == '\\' || kPatternMarks.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// Joins a folder and a path. If the path is a pattern, the folder's name is escaped. REQUIRES: `folder` is
// not empty.
std::string path_in(const std::string& folder, const std::string& path) {
  const std::string between = folder.ends_with('/') ? "" : "/";
  const bool is_pattern = path.find_first_of(kPatternMarks) != std::string::npos;
  std::string plain = folder + between + path;
  return is_pattern && !is_there(plain) ? as_letters(folder) + between + path : plain;
}

// Removes `.` from a path: ./a/./b becomes a/b. `..` is kept, because its meaning depends on symbolic links.
std::string without_dots(std::string path) {
  for (auto at = path.find("/./"); at != std::string::npos; at = path.find("/./", at)) path.erase(at, 2);
  while (path.starts_with("./") && path.size() > 2) path.erase(0, 2);
  return path;
}

// Returns the folder of a file, with / at the end; empty for the working directory itself.
std::string folder_of(const std::string& file) {
  const std::string plain = without_dots(file);
  return plain.substr(0, plain.rfind('/') + 1);
}

bool is_plain_folder(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// Replaces /a/b/../c with /a/c unless b is a symbolic link. So a place has one name, independent of the
// folder from which it was named.
std::string without_parents(std::string path) {
  auto at = path.find("/../");
  while (at != std::string::npos) {
    const bool goes = at > 0 && is_plain_folder(path.substr(0, at));
    const auto begin = goes ? path.rfind('/', at - 1) : at;
    if (goes) path.erase(begin, at + 3 - begin);
    at = path.find("/../", goes ? begin : at + 1);
  }
  return path;
}

std::string absolute(const std::string& path) {
  const std::string here = is_relative(path) ? working_directory() : std::string();
  return without_parents(here.empty() ? path : path_in(here, without_dots(path)));
}

// Returns the end of an error that names both places. `beside` is the path in the config's folder.
std::string two_places(const std::string& path, const std::string& beside) {
  if (!is_relative(path)) return {};
  const std::string here = absolute(path), there = absolute(beside);
  return fmt::format("; looked at {}{} (from the working directory)",
                     there == here ? "" : there + " (beside the config) and ", here);
}

std::vector<std::string*> paths_of(Settings& settings) {
  std::vector<std::string*> out;
  for (const Key& key : schema_of(settings).keys())
    if (key.setting() != nullptr && key.setting()->type.paths)
      std::ranges::copy(key.setting()->type.paths(settings), std::back_inserter(out));
  return out;
}

}  // namespace

void resolve_paths(Config& config, const std::string& file) {
  const std::string folder = folder_of(file);
  if (folder.empty()) return;
  for (std::size_t i = 0; i < config.schema->size(); ++i) {
    const Setting* const setting = (*config.schema)[i].setting();
    if (setting == nullptr || !setting->type.paths || setting->type.makes_paths) continue;
    if (config.origins[i].level != Origin::Level::file) continue;
    for (std::string* const path : setting->type.paths(config.settings)) {
      if (!is_relative(*path)) continue;
      std::string beside = path_in(folder, without_dots(*path));
      if (is_there(beside) || has_match(beside))
        *path = std::move(beside);
      else if (!is_there(*path) && !has_match(*path))
        config.settings.beside_config[*path] = std::move(beside);
    }
  }
}

Settings with_absolute_paths(Settings settings) {
  for (std::string* const path : paths_of(settings)) *path = absolute(*path);
  return settings;
}

Settings without_paths(Settings settings) {
  for (std::string* const path : paths_of(settings)) path->clear();
  return settings;
}

std::string found_path(const std::string& path, const std::string& file) {
  const std::string folder = folder_of(file);
  if (!is_relative(path) || folder.empty()) return path;
  std::string beside = path_in(folder, without_dots(path));
  return is_there(beside) ? beside : path;
}

std::string looked_at(const std::string& path, const std::string& file) {
  const std::string folder = folder_of(file);
  return two_places(path, folder.empty() ? path : path_in(folder, without_dots(path)));
}

std::string places_looked_at(const Settings& settings, const std::string& path) {
  const auto found = settings.beside_config.find(path);
  return two_places(path, found == settings.beside_config.end() ? path : found->second);
}

}  // namespace octavo_train
