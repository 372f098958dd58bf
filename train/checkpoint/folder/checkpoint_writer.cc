// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/checkpoint_writer.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/formats/tensor_list.h"
#include "train/io/files.h"
#include "train/io/output_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace octavo_train {
namespace {

// Bytes for the folder, checksums.txt and the file system's own use.
constexpr std::uint64_t kOverhead = 64 * 1024;

Status check_room(const std::string& run_folder, std::uint64_t bytes) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(run_folder, error);
  // If the file system does not report its free space, that is not an error: a failed write will report it.
  if (error || space.capacity == 0 || space.available >= bytes) return {};
  return failed_error(
      "{}: too little space for a checkpoint: it needs {}, {} are free, {} are missing: free some, or write "
      "to another disk",
      run_folder, size_text(bytes), size_text(space.available), size_text(bytes - space.available));
}

}  // namespace

Result<CheckpointWriter> CheckpointWriter::begin(const std::string& run_folder, std::int64_t step,
                                                 std::uint64_t expected_bytes) {
  if (step < 0) return invalid_error("step: got {}, expected 0 or more", step);
  std::error_code error;
  std::filesystem::create_directories(run_folder, error);
  if (error) return system_error(run_folder, "make the folder", error.value());
  const Status left = remove_leftovers(run_folder);
  const std::uint64_t most = UINT64_MAX - kOverhead;
  RETURN_IF_ERROR(check_room(run_folder, std::min(expected_bytes, most) + kOverhead));
  ASSIGN_OR_RETURN(auto partial, ScratchFolder::make(checkpoint_path(
                                     run_folder, free_name(run_folder, step, CheckpointState::partial))));
  CheckpointWriter writer(run_folder, step, expected_bytes, std::move(partial));
  writer.warn(left);
  return writer;
}

template <class Write>
Status CheckpointWriter::add_file(const std::string& file_name, std::uint64_t size, Write write) {
  const std::string path = partial_.path() + "/" + file_name;
  ASSIGN_OR_RETURN(OutputFile file,
                   OutputFile::create(path, {written_, std::max(expected_bytes_, written_ + size)}));
  RETURN_IF_ERROR(write(file));
  RETURN_IF_ERROR(file.finish());
  files_.push_back(file.checksum(file_name));
  written_ += files_.back().size;
  return {};
}

Status CheckpointWriter::check_open(const std::string& file_name) const {
  if (!failure_.ok()) return failure_;
  const auto same = [&](const FileChecksum& file) { return file.name == file_name; };
  if (!is_plain_name(file_name) || file_name == kChecksumsName || std::ranges::any_of(files_, same)) {
    return invalid_error("{}: file '{}': expected a plain name that is not in the checkpoint yet",
                         partial_.path(), file_name);
  }
  return {};
}

Status CheckpointWriter::keep(Status status) {
  if (failure_.ok()) failure_ = status;
  return status;
}

void CheckpointWriter::warn(const Status& status) {
  if (status.ok() || warning_.find(status.message()) != std::string::npos) return;
  warning_ += (warning_.empty() ? "" : "; ") + status.message();
}

Status CheckpointWriter::add_tensors(const std::string& file_name, std::span<const TensorSource> sources,
                                     const std::map<std::string, std::string>& metadata) {
  if (Status status = check_open(file_name); !status.ok()) return keep(std::move(status));
  const Result<SafetensorsLayout> plan = plan_safetensors(sources, metadata);
  if (!plan.ok()) return keep(with_context(file_name, plan.status()));
  return keep(
      add_file(file_name, plan->size, [&](OutputFile& file) { return write_planned(file, *plan, sources); }));
}

Status CheckpointWriter::add_text(const std::string& file_name, std::string_view text) {
  if (Status status = check_open(file_name); !status.ok()) return keep(std::move(status));
  return keep(add_file(file_name, text.size(),
                       [&](OutputFile& file) { return file.write(std::as_bytes(std::span(text))); }));
}

Status CheckpointWriter::commit() {
  if (!failure_.ok()) return failure_;
  failure_ = invalid_error("{}: commit() was called before", partial_.path());
  const std::string text = format_checksums(files_);
  RETURN_IF_ERROR(add_file(std::string(kChecksumsName), text.size(),
                           [&](OutputFile& file) { return file.write(std::as_bytes(std::span(text))); }));
  RETURN_IF_ERROR(sync_folder(partial_.path()));

  const CheckpointName name{step_, CheckpointState::complete};
  const std::string place = checkpoint_path(run_folder_, name);
  const std::string replaced =
      checkpoint_path(run_folder_, free_name(run_folder_, step_, CheckpointState::replaced));
  // The old checkpoint is renamed first. It still counts until the new one has its name.
  const bool had = path_exists(place);
  if (had) {
    RETURN_IF_ERROR(rename_path(place, replaced));
  }
  if (Status status = rename_path(partial_.path(), place); !status.ok()) {
    if (had) std::ignore = rename_path(replaced, place);
    return status;
  }
  partial_.release();
  // From here on the checkpoint is complete and in its place: later errors become warnings.
  warn(sync_folder(run_folder_));
  // The link is a convenience for users, and some file systems have no links. No code reads it to find a
  // checkpoint.
  warn(point_link(run_folder_, kLatestName, name.text()));
  warn(remove_leftovers(run_folder_));
  return {};
}

}  // namespace octavo_train
