// Parses, lists and cleans up the names in a run folder; see checkpoint_names.h.
// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/checkpoint_names.h"

#include "train/base/status.h"
#include "train/io/file_descriptor.h"
#include "train/io/folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::string_view kPrefix = "checkpoint-";

// Returns the temporary path at which point_link() creates a link before renaming it.
std::string link_beside(const std::string& run_folder, std::string_view link) {
  return run_folder + "/." + std::string(link) + ".partial";
}

std::string_view suffix_of(CheckpointState state) {
  switch (state) {
    case CheckpointState::partial:
      return ".partial";
    case CheckpointState::replaced:
      return ".replaced";
    case CheckpointState::complete:
      break;
  }
  return "";
}

}  // namespace

std::string CheckpointName::text() const {
  return (state == CheckpointState::complete ? "" : ".") + std::string(kPrefix) + std::to_string(step) +
         std::string(suffix_of(state)) + (number > 0 ? "." + std::to_string(number) : "");
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
    return {status.code(), status.message() + " (" + name + " itself is saved)"};
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

}  // namespace octavo_train
