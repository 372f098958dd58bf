// Finds the files of a text, identifies them by hashes, divides them into training and evaluation text, and
// compares them with an earlier record; see text_files.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/text_files.h"

#include "train/base/status.h"
#include "train/base/text.h"
#include "train/config/paths.h"
#include "train/io/checksums.h"
#include "train/io/files.h"

#include <glob.h>
#include <sys/stat.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostHeldOut = std::int64_t{8} << 20;
constexpr std::int64_t kMostHashed = std::int64_t{4} << 20;
constexpr std::int64_t kPiece = std::int64_t{64} << 10;

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
  if (failed != 0 && failed != GLOB_NOMATCH) return failed_error("{}: its folders cannot be read", pattern);
  std::ranges::sort(paths);
  for (const std::string& path : paths) {
    const Kind kind = kind_of(path);
    if (kind == Kind::file) out.push_back(path);
    if (kind != Kind::folder) continue;
    RETURN_IF_ERROR(add_folder(path, out));
  }
  return {};
}

// Returns the hash of the first `size` bytes of a mapped file.
Result<std::string> hash_of(const MappedFile& file, std::int64_t size, const std::string& path) {
  Hasher hasher;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(size, kPiece)));
  const auto add = [&](std::int64_t begin, std::int64_t end) -> Status {
    const auto count = static_cast<std::size_t>(end - begin);
    if (!copy_mapped(file.bytes().subspan(static_cast<std::size_t>(begin), count), piece.data()))
      return cannot_read_mapped(path, begin, end);
    hasher.add(std::span(piece).first(count));
    return {};
  };
  if (size <= kMostHashed) {
    for (std::int64_t at = 0; at < size; at += kPiece) {
      RETURN_IF_ERROR(add(at, std::min(at + kPiece, size)));
    }
    return hasher.hex();
  }
  constexpr std::int64_t kPieces = kMostHashed / kPiece;
  for (std::int64_t i = 0; i < kPieces; ++i) {
    // The first piece is at the beginning, the last one at the end.
    const std::int64_t at =
        (size - kPiece) / (kPieces - 1) * i + (size - kPiece) % (kPieces - 1) * i / (kPieces - 1);
    RETURN_IF_ERROR(add(at, at + kPiece));
  }
  return hasher.hex();
}

// Returns the sum of a number of all files: of their sizes, or of their held-out bytes.
std::int64_t total(const std::vector<FileRecord>& files,
                   std::int64_t FileRecord::*number = &FileRecord::size) {
  std::int64_t sum = 0;
  for (const FileRecord& file : files) sum += file.*number;
  return sum;
}

Result<std::vector<FileRecord>> records_of(std::string_view key, const std::vector<std::string>& paths) {
  std::vector<FileRecord> out;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const auto map, with_context(key, MappedFile::open(path)));
    if (map.bytes().empty()) return invalid_error("{}: {}: is empty; name a file with text", key, path);
    const auto size = static_cast<std::int64_t>(map.bytes().size());
    ASSIGN_OR_RETURN(std::string hash, with_context(key, hash_of(map, size, path)));
    out.push_back({path, size, std::move(hash), 0});
  }
  return out;
}

// Returns an error such as `data.train: corpus.txt: 100 bytes are too few for a block_size of 512, …`
Status too_short(std::string_view key, const std::vector<FileRecord>& files, std::int64_t block_size,
                 std::int64_t needed, std::string_view why) {
  constexpr std::size_t kNamed = 4;
  std::string paths = joined(std::span(files).first(std::min(files.size(), kNamed)), ", ", &FileRecord::path);
  if (files.size() > kNamed) paths += fmt::format(" and {} more", files.size() - kNamed);
  return invalid_error(
      "{}: {}: {} bytes are too few for a block_size of {}, which takes {}{}; use more text or a smaller "
      "data.block_size",
      key, paths, total(files), block_size, needed, why);
}

void hold_out_at_the_end(std::vector<FileRecord>& files, std::int64_t bytes) {
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    file->held_out = std::min(file->size, bytes);
    bytes -= file->held_out;
  }
}

// Holds out a share of each file. A share that is too small for a window is added to the next file's share,
// so that no evaluation window consists of many small ends.
void hold_out_in_each(std::vector<FileRecord>& files, std::int64_t bytes, std::int64_t window) {
  const auto all = static_cast<double>(total(files));
  std::int64_t seen = 0, due = 0, before = 0;
  for (FileRecord& file : files) {
    seen += file.size;
    const bool last = &file == &files.back();
    const std::int64_t until =
        last ? bytes
             : static_cast<std::int64_t>(static_cast<double>(bytes) * (static_cast<double>(seen) / all));
    due += until - before;
    before = until;
    if (due < window) continue;
    file.held_out = std::min(due, file.size);
    due -= file.held_out;
  }
}

bool begins_as(const FileRecord& now, const FileRecord& then) {
  if (now.size < then.size) return false;
  if (now.size == then.size) return now.hash == then.hash;
  const auto hash = fingerprint(now.path, then.size);
  return hash.ok() && *hash == then.hash;
}

// Returns, for each file of `now`, the index of the same file in `then`, if any. The file at the same index
// is tried first. Others are tried only if the size or the path is equal, because a file that has grown and
// moved is rare, and hashes cost time.
std::vector<std::optional<std::size_t>> matches(const std::vector<FileRecord>& then,
                                                const std::vector<FileRecord>& now) {
  std::vector<std::optional<std::size_t>> out(now.size());
  std::vector<bool> taken(then.size());
  const auto take = [&](std::size_t i, std::size_t j) {
    if (out[i] || taken[j] || !begins_as(now[i], then[j])) return;
    out[i] = j;
    taken[j] = true;
  };
  for (std::size_t i = 0; i < std::min(now.size(), then.size()); ++i) take(i, i);
  for (std::size_t i = 0; i < now.size(); ++i) {
    for (std::size_t j = 0; !out[i] && j < then.size(); ++j) {
      if (now[i].size == then[j].size || now[i].path == then[j].path) take(i, j);
    }
  }
  return out;
}

std::string bytes_and_hash(const FileRecord& file) {
  return fmt::format("{} bytes with the hash {}", file.size, file.hash);
}

// Compares one list of files. `out` has the files of `now`; records of unchanged or grown files are replaced
// by those that the resumed run uses.
void compare_files(const std::string& key, const std::vector<FileRecord>& then, std::vector<FileRecord>& out,
                   TextChange& change) {
  const auto found = matches(then, out);
  bool in_order = out.size() == then.size();
  std::vector<bool> still_there(then.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!found[i]) {
      in_order = false;
      const bool replaced = i < then.size() && then[i].path == out[i].path;
      change.changed.push_back(
          key + ": " + out[i].path +
          (replaced ? " had " + bytes_and_hash(then[i]) + ", and has " + bytes_and_hash(out[i]) : " is new"));
      if (replaced) still_there[i] = true;
      continue;
    }
    in_order = in_order && *found[i] == i;
    const FileRecord& before = then[*found[i]];
    still_there[*found[i]] = true;
    if (out[i].size > before.size) {
      change.grown.push_back(
          fmt::format("{}: {} has grown from {} to {} bytes; this run still uses the first {}", key,
                      out[i].path, before.size, out[i].size, before.size));
    }
    out[i] = {out[i].path, before.size, before.hash, before.held_out};
  }
  for (std::size_t j = 0; j < then.size(); ++j) {
    if (!still_there[j]) change.changed.push_back(key + ": " + then[j].path + " is missing");
  }
  if (change.changed.empty() && !in_order) change.changed.push_back(key + ": the files have another order");
}

Json files_to_json(const std::vector<FileRecord>& files) {
  Json out = Json::array();
  for (const FileRecord& file : files)
    out.push_back(
        {{"path", file.path}, {"size", file.size}, {"hash", file.hash}, {"held_out", file.held_out}});
  return out;
}

std::vector<FileRecord> files_from_json(const Json& json) {
  std::vector<FileRecord> out;
  for (const Json& file : json) {
    out.push_back({file.at("path").get<std::string>(), file.at("size").get<std::int64_t>(),
                   file.at("hash").get<std::string>(), file.at("held_out").get<std::int64_t>()});
  }
  return out;
}

}  // namespace

Result<std::vector<std::string>> find_text_files(const std::string& key, std::span<const std::string> entries,
                                                 const Settings& settings) {
  if (entries.empty()) return invalid_error("{}: no files; name the text", key);
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
      RETURN_IF_ERROR(with_context(key, pattern ? add_matches(entry, out) : add_folder(entry, out)));
      if (out.size() == before) {
        return invalid_error("{}: {}{} (hidden and empty ones do not count){}", key, entry,
                             pattern ? ": no file matches" : ": the folder has no files",
                             places_looked_at(settings, entry));
      }
    } else {
      out.push_back(entry);  // opening the file reports other errors
    }
  }
  return out;
}

Result<std::string> fingerprint(const std::string& path, std::int64_t size) {
  ASSIGN_OR_RETURN(const auto map, MappedFile::open(path));
  if (static_cast<std::int64_t>(map.bytes().size()) < size)
    return invalid_error("{}: has fewer than {} bytes", path, size);
  return hash_of(map, size, path);
}

Result<TextRecord> record_text(const std::vector<std::string>& train,
                               const std::optional<std::vector<std::string>>& validation,
                               std::int64_t block_size, HoldOut rule) {
  const std::int64_t window = block_size + 1;
  TextRecord out;
  ASSIGN_OR_RETURN(out.train, records_of("data.train", train));
  const std::int64_t size = total(out.train);
  if (!validation) {
    if (size < 2 * window) {
      return too_short("data.train", out.train, block_size, 2 * window,
                       " where data.validation is null and a part is held out for it");
    }
    // Both limits leave a window to train on: a tenth is less than the rest, and two windows fit.
    const std::int64_t bytes = std::max(std::min(size / 10, kMostHeldOut), window);
    if (rule == HoldOut::each_file) hold_out_in_each(out.train, bytes, window);
    // If all files are smaller than a window, less than a window may be held out.
    if (total(out.train, &FileRecord::held_out) < window) hold_out_at_the_end(out.train, bytes);
    return out;
  }
  if (size < window) return too_short("data.train", out.train, block_size, window, "");
  ASSIGN_OR_RETURN(out.validation, records_of("data.validation", *validation));
  if (total(out.validation) < window)
    return too_short("data.validation", out.validation, block_size, window, "");
  return out;
}

Result<TextSplit> open_split(const TextRecord& record) {
  std::vector<TextPiece> train, validation;
  for (const FileRecord& file : record.train) {
    train.push_back({file.path, 0, file.size - file.held_out});
    if (record.validation.empty()) validation.push_back({file.path, file.size - file.held_out, file.size});
  }
  for (const FileRecord& file : record.validation) validation.push_back({file.path, 0, file.size});
  ASSIGN_OR_RETURN(auto first, TextCorpus::open(train));
  ASSIGN_OR_RETURN(auto second, TextCorpus::open(validation));
  return TextSplit{{first, 0, first.size()}, {second, 0, second.size()}};
}

Result<TextChange> compare_text(const TextRecord& then, const TextRecord& now) {
  TextChange out;
  out.record = now;
  if (then.validation.empty() != now.validation.empty()) {
    out.changed.push_back(
        now.validation.empty()
            ? "data.validation: there were files, and now a part of data.train is held out"
            : "data.validation: a part of data.train was held out, and now there are files");
    if (now.validation.empty()) return out;  // no part was held out before, so none can be held out again
  }
  compare_files("data.train", then.train, out.record.train, out);
  if (!then.validation.empty()) compare_files("data.validation", then.validation, out.record.validation, out);
  return out;
}

Json to_json(const TextRecord& record) {
  return {{"train", files_to_json(record.train)}, {"validation", files_to_json(record.validation)}};
}

Result<TextRecord> text_record(const Json& json) {
  TextRecord out{files_from_json(json.at("train")), files_from_json(json.at("validation"))};
  // open_split() relies on this.
  const bool fits = std::ranges::all_of(
      out.train, [](const FileRecord& file) { return file.held_out >= 0 && file.held_out <= file.size; });
  if (!fits)
    return Status::invalid(
        "data: state.json holds out more bytes of a file than it has; state.json was changed");
  return out;
}

}  // namespace octavo_train
