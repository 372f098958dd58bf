// Finds, verifies and removes checkpoints; see checkpoint_folder.h.
// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/checkpoint_folder.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_names.h"
#include "train/io/checksums.h"
#include "train/io/mapped_file.h"
#include "train/io/text_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::uint64_t kChecksumsLimit = 64 * 1024;
constexpr std::uint64_t kStateLimit = 64 << 20;
constexpr std::size_t kPiece = 1 << 20;

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
    const Result<std::size_t> count = file.read(piece, path);
    if (!count.ok()) return count.status();
    hasher.add(std::span(piece).first(*count));
    if (*count < piece.size()) return hasher.hex();
  }
}

Status verify_file(const std::string& path, const FileChecksum& expected) {
  const std::string size = std::to_string(expected.size);
  if (!path_exists(path)) {
    return Status::failed(path + ": missing; " + std::string(kChecksumsName) + " lists it with " + size +
                          " bytes");
  }
  Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) return file.status();
  if (file->size != expected.size) {
    return Status::failed(path + ": has " + std::to_string(file->size) + " bytes, expected " + size +
                          (file->size < expected.size ? "; it is cut short" : "; it has grown"));
  }
  const Result<std::string> hash = hash_file(*file, path);
  if (!hash.ok()) return hash.status();
  if (*hash != expected.hash) {
    return Status::failed(path + ": its " + size + " bytes have the hash " + *hash + ", expected " +
                          expected.hash + "; it was changed or the disk is damaged");
  }
  return {};
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
  return Status::failed(path + ": its name is of step " + std::to_string(name->step) +
                        ", but its state.json is of step " + std::to_string(*step) +
                        "; the folder was copied or renamed. Rename it to " +
                        CheckpointName{*step, CheckpointState::complete}.text() + ", or remove it");
}

}  // namespace

std::vector<CheckpointRef> list_checkpoints(const std::string& run_folder) {
  auto found = find_checkpoints(run_folder);
  return found.ok() ? std::move(*found) : std::vector<CheckpointRef>();
}

Status verify_checkpoint(const std::string& path, std::span<const std::string_view> only) {
  const std::string list = path + "/" + std::string(kChecksumsName);
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return Status::failed(path + ": not a folder; a checkpoint is one");
  }
  if (!path_exists(list)) {
    return Status::failed(list +
                          ": missing; the checkpoint was not written to its end, or not by this program");
  }
  const Result<std::string> text = read_text_file(list, kChecksumsLimit);
  if (!text.ok()) return text.status();
  ASSIGN_OR_RETURN(const auto files, parse_checksums(*text, list));
  for (const std::string_view name : only) {
    if (std::ranges::find(files, name, &FileChecksum::name) == files.end())
      return Status::failed(list + ": " + std::string(name) + " is not listed");
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
