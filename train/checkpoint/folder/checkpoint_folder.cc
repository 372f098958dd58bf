// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/checkpoint_folder.h"

#include "train/io/checksums.h"
#include "train/io/files.h"
#include "train/io/text_file.h"

#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::uint64_t kChecksumsLimit = 64 * 1024;
constexpr std::uint64_t kStateLimit = 64 << 20;
constexpr std::size_t kPiece = 1 << 20;

// Returns the temporary path at which point_link() creates a link before renaming it.
std::string link_beside(const std::string& run_folder, std::string_view link) {
  return fmt::format("{}/.{}.partial", run_folder, link);
}

std::string_view suffix_of(CheckpointState state) {
  return state == CheckpointState::partial    ? ".partial"
         : state == CheckpointState::replaced ? ".replaced"
                                              : "";
}

Result<std::vector<CheckpointRef>> find_checkpoints(const std::string& run_folder) {
  ASSIGN_OR_RETURN(const auto names, checkpoint_names(run_folder));
  std::vector<CheckpointRef> found;
  for (const CheckpointName name : names) {
    if (name.state == CheckpointState::partial) continue;
    const CheckpointName complete{name.step, CheckpointState::complete};
    if (name != complete && std::ranges::find(names, complete) != names.end()) continue;
    found.push_back({name.step, checkpoint_path(run_folder, name)});
  }
  return found;
}

Result<std::string> hash_file(InputFile& file, const std::string& path) {
  Hasher hasher;
  std::vector<std::byte> piece(kPiece);
  for (;;) {
    ASSIGN_OR_RETURN(const std::size_t count, file.read(piece, path));
    hasher.add(std::span(piece).first(count));
    if (count < piece.size()) return hasher.hex();
  }
}

Status verify_file(const std::string& path, const FileChecksum& expected) {
  if (!path_exists(path)) {
    return failed_error("{}: missing; {} lists it with {} bytes", path, kChecksumsName, expected.size);
  }
  ASSIGN_OR_RETURN(InputFile file, InputFile::open(path));
  if (file.size != expected.size) {
    return failed_error("{}: has {} bytes, expected {}; it {}", path, file.size, expected.size,
                        file.size < expected.size ? "is cut short" : "has grown");
  }
  ASSIGN_OR_RETURN(const std::string hash, hash_file(file, path));
  if (hash == expected.hash) return {};
  return failed_error("{}: its {} bytes have the hash {}, expected {}; it was changed or the disk is damaged",
                      path, expected.size, hash, expected.hash);
}

// Returns the step in a checkpoint's state.json; nullopt if there is no such file or no step in it.
std::optional<std::int64_t> step_in_state(const std::string& path) {
  const std::string file = path + "/state.json";
  if (!path_exists(file)) return std::nullopt;
  const auto text = read_text_file(file, kStateLimit);
  if (!text.ok()) return std::nullopt;
  const auto state = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object() || !state.contains("step") || !state["step"].is_number_integer())
    return std::nullopt;
  return state["step"].get<std::int64_t>();
}

// Checks that the folder's name has the step of state.json. A copied or renamed folder has correct checksums,
// but another step in its name.
Status check_step(const std::string& path) {
  const auto name = CheckpointName::parse(std::string_view(path).substr(path.rfind('/') + 1));
  const std::optional<std::int64_t> step = name ? step_in_state(path) : std::nullopt;
  if (!step || *step == name->step) return {};
  return failed_error(
      "{}: its name is of step {}, but its state.json is of step {}; the folder was "
      "copied or renamed. Rename it to {}, or remove it",
      path, name->step, *step, CheckpointName{*step}.text());
}

}  // namespace

std::string CheckpointName::text() const {
  return fmt::format("{}{}{}{}{}", state == CheckpointState::complete ? "" : ".", kPrefix, step,
                     suffix_of(state), number > 0 ? fmt::format(".{}", number) : "");
}

std::optional<CheckpointName> CheckpointName::parse(std::string_view text) {
  const std::size_t digits = text.find_first_of("0123456789");
  if (digits == std::string_view::npos) return std::nullopt;
  CheckpointName name;
  std::from_chars(text.data() + digits, text.data() + text.size(), name.step);
  for (const CheckpointState state :
       {CheckpointState::complete, CheckpointState::partial, CheckpointState::replaced}) {
    name.state = state;
    name.number = 0;
    if (name.text() == text) return name;
    const std::string before = name.text() + ".";
    if (state == CheckpointState::complete || !text.starts_with(before)) continue;
    std::from_chars(text.data() + before.size(), text.data() + text.size(), name.number);
    if (name.text() == text) return name;
  }
  return std::nullopt;
}

std::string checkpoint_path(const std::string& run_folder, CheckpointName name) {
  return run_folder + "/" + name.text();
}

CheckpointName free_name(const std::string& run_folder, std::int64_t step, CheckpointState state) {
  CheckpointName name{step, state};
  while (path_exists(checkpoint_path(run_folder, name))) ++name.number;
  return name;
}

Result<std::vector<CheckpointName>> checkpoint_names(const std::string& run_folder) {
  std::vector<CheckpointName> names;
  ASSIGN_OR_RETURN(const auto found, list_folder(run_folder));
  for (const std::string& each : found) {
    if (const auto name = CheckpointName::parse(each)) names.push_back(*name);
  }
  std::ranges::sort(names, [](const CheckpointName& a, const CheckpointName& b) {
    return a.step != b.step ? a.step > b.step : a.number > b.number;
  });
  return names;
}

bool path_exists(const std::string& path) {
  struct stat found {};
  return lstat(path.c_str(), &found) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

Status rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) return system_error(from, "rename to " + to, errno);
  return {};
}

Status point_link(const std::string& run_folder, std::string_view link, const std::string& name) {
  const std::string beside = link_beside(run_folder, link);
  RETURN_IF_ERROR(remove_tree(beside));
  if (::symlink(name.c_str(), beside.c_str()) != 0) return system_error(beside, "link to " + name, errno);
  if (Status status = rename_path(beside, run_folder + "/" + std::string(link)); !status.ok()) {
    ::unlink(beside.c_str());
    return {status.code(), fmt::format("{} ({} itself is saved)", status.message(), name)};
  }
  return sync_folder(run_folder);
}

Status remove_leftovers(const std::string& run_folder) {
  ASSIGN_OR_RETURN(const auto names, checkpoint_names(run_folder));
  Status first;
  for (const CheckpointName name : names) {
    const bool replaced = name.state == CheckpointState::replaced &&
                          path_exists(checkpoint_path(run_folder, {name.step, CheckpointState::complete}));
    if (name.state != CheckpointState::partial && !replaced) continue;
    Status status = remove_tree(checkpoint_path(run_folder, name));
    if (first.ok()) first = std::move(status);
  }
  for (const std::string_view link : {kLatestName, kBestName}) {
    Status status = remove_tree(link_beside(run_folder, link));
    if (first.ok()) first = std::move(status);
  }
  return first;
}

std::vector<CheckpointRef> list_checkpoints(const std::string& run_folder) {
  auto found = find_checkpoints(run_folder);
  return found.ok() ? std::move(*found) : std::vector<CheckpointRef>();
}

Status verify_checkpoint(const std::string& path, std::span<const std::string_view> only) {
  const std::string list = fmt::format("{}/{}", path, kChecksumsName);
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return Status::failed(path + ": not a folder; a checkpoint is one");
  }
  if (!path_exists(list)) {
    return failed_error("{}: missing; the checkpoint was not written to its end, or not by this program",
                        list);
  }
  ASSIGN_OR_RETURN(const auto text, read_text_file(list, kChecksumsLimit));
  ASSIGN_OR_RETURN(const auto files, parse_checksums(text, list));
  for (const std::string_view name : only) {
    if (std::ranges::find(files, name, &FileChecksum::name) == files.end())
      return failed_error("{}: {} is not listed", list, name);
  }
  for (const FileChecksum& file : files) {
    if (!only.empty() && std::ranges::find(only, file.name) == only.end()) continue;
    RETURN_IF_ERROR(verify_file(path + "/" + file.name, file));
  }
  return check_step(path);
}

Result<NewestCheckpoint> newest_checkpoint(const std::string& run_folder,
                                           std::span<const std::string_view> files) {
  ASSIGN_OR_RETURN(const auto found, find_checkpoints(run_folder));
  NewestCheckpoint newest;
  for (const CheckpointRef& checkpoint : found) {
    const Status status = verify_checkpoint(checkpoint.path, files);
    if (status.ok()) {
      newest.found = checkpoint;
      break;
    }
    newest.skipped.push_back(status.message());
  }
  return newest;
}

Status remove_checkpoints(const std::string& run_folder, std::vector<CheckpointRef> which) {
  std::error_code none;
  const std::string latest =
      std::filesystem::read_symlink(run_folder + "/" + std::string(kLatestName), none).filename().native();
  std::erase_if(which, [&](const CheckpointRef& checkpoint) {
    return CheckpointName{checkpoint.step, CheckpointState::complete}.text() == latest;
  });
  Status first;
  for (const CheckpointRef& checkpoint : which) {
    const CheckpointName partial = free_name(run_folder, checkpoint.step, CheckpointState::partial);
    Status status = rename_path(checkpoint.path, checkpoint_path(run_folder, partial));
    if (first.ok()) first = std::move(status);
  }
  if (!which.empty()) {
    // All folders are renamed and synced before files are removed: after a power failure no checkpoint with
    // missing files may reappear.
    RETURN_IF_ERROR(sync_folder(run_folder));
  }
  Status left = remove_leftovers(run_folder);
  return first.ok() ? left : first;
}

}  // namespace octavo_train
