// Resolves folders and patterns to files; see text_files.h.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/config/paths.h"
#include "train/io/file_descriptor.h"
#include "train/io/folders.h"
#include "train/tasks/text/text_files.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace octavo_train {
namespace {

enum class Kind { none, file, empty_file, folder, other };

Kind kind_of(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return Kind::none;
  if (S_ISDIR(found.st_mode)) return Kind::folder;
  if (!S_ISREG(found.st_mode)) return Kind::other;
  return found.st_size > 0 ? Kind::file : Kind::empty_file;
}

bool is_folder_link(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISLNK(found.st_mode) && kind_of(path) == Kind::folder;
}

Status add_folder(const std::string& folder, std::vector<std::string>& out) {
  ASSIGN_OR_RETURN(auto names, list_folder(folder));
  std::ranges::sort(names);
  for (const std::string& name : names) {
    if (name.starts_with('.')) continue;
    const std::string path = folder + (folder.ends_with('/') ? "" : "/") + name;
    const Kind kind = kind_of(path);
    if (kind == Kind::file) out.push_back(path);
    // A link to a folder could lead back to this folder.
    if (kind != Kind::folder || is_folder_link(path)) continue;
    RETURN_IF_ERROR(add_folder(path, out));
  }
  return {};
}

Status add_matches(const std::string& pattern, std::vector<std::string>& out) {
  glob_t found{};
  const int failed = ::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths;
  for (std::size_t i = 0; failed == 0 && i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (failed != 0 && failed != GLOB_NOMATCH) return Status::failed(pattern + ": its folders cannot be read");
  std::ranges::sort(paths);
  for (const std::string& path : paths) {
    const Kind kind = kind_of(path);
    if (kind == Kind::file) out.push_back(path);
    if (kind != Kind::folder) continue;
    RETURN_IF_ERROR(add_folder(path, out));
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> find_text_files(const std::string& key, std::span<const std::string> entries,
                                                 const Settings& settings) {
  if (entries.empty()) return Status::invalid(key + ": no files; name the text");
  std::vector<std::string> out;
  for (const std::string& entry : entries) {
    const Kind kind = kind_of(entry);
    const std::size_t before = out.size();
    const bool pattern = kind == Kind::none && entry.find_first_of("*?[") != std::string::npos;
    if (kind == Kind::none && !pattern) {
      return Status(StatusCode::failed, key + ": " + system_error(entry, "open", errno).message() +
                                            places_looked_at(settings, entry));
    }
    if (kind == Kind::folder || pattern) {
      if (Status bad = pattern ? add_matches(entry, out) : add_folder(entry, out); !bad.ok())
        return Status(bad.code(), key + ": " + bad.message());
      if (out.size() == before) {
        return Status::invalid(key + ": " + entry +
                               (pattern ? ": no file matches" : ": the folder has no files") +
                               " (hidden and empty ones do not count)" + places_looked_at(settings, entry));
      }
    } else {
      out.push_back(entry);  // opening the file reports other errors
    }
  }
  return out;
}

}  // namespace octavo_train
