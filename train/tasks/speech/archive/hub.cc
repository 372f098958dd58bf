// Finds the files of a model in a folder or in the hub's cache. `model.name` is a path, or a name of the
// Hugging Face hub whose files the hub's own tools have downloaded. Nothing is downloaded here. See
// archive.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/archive.h"

#include "train/base/status.h"
#include "train/io/files.h"
#include "train/io/text_file.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

namespace octavo_train {
namespace {

constexpr std::string_view kArchive = ".nemo";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Replaces a leading `~` with the user's home folder, like Python's expanduser.
std::string expanded(const std::string& path) {
  return path == "~" || path.starts_with("~/") ? variable("HOME") + path.substr(1) : path;
}

// Returns true for `ORGANIZATION/NAME` with only the characters that the hub allows. Other characters are not
// accepted because error messages print the name in a shell command.
bool is_hub_name(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos || name.ends_with(kArchive)) return false;
  const auto is_part = [](std::string_view part) {
    constexpr std::string_view kSigns = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    return !part.empty() && part.front() != '.' && part.front() != '-' &&
           part.find_first_not_of(kSigns) == std::string_view::npos &&
           part.find("--") == std::string_view::npos;
  };
  return is_part(name.substr(0, slash)) && is_part(name.substr(slash + 1));
}

Result<SpeechModelLocation> look_into(const std::string& folder) {
  ASSIGN_OR_RETURN(auto names, list_folder(folder));
  std::ranges::sort(names);
  std::vector<std::string> archives;
  for (const std::string& name : names) {
    if (name.ends_with(kArchive)) archives.push_back(name);
  }
  if (archives.size() > 1) {
    return invalid_error("{}: has {} archives, such as {} and {}; name one of them", folder, archives.size(),
                         archives[0], archives[1]);
  }
  if (archives.size() == 1) return SpeechModelLocation{folder + '/' + archives[0], SpeechFiles::nemo};
  if (std::ranges::binary_search(names, "config.json"))
    return SpeechModelLocation{folder, SpeechFiles::transformers};
  return Status::invalid(folder + ": has no .nemo archive and no config.json, expected a model");
}

Result<SpeechModelLocation> look_into_cache(const std::string& name) {
  const std::string cache = hub_cache();
  const std::size_t slash = name.find('/');
  const std::string model =
      fmt::format("{}/models--{}--{}", cache, name.substr(0, slash), name.substr(slash + 1));
  const std::string download = "; download it with: hf download " + name;
  if (!is_folder(model)) {
    return invalid_error(
        "{}: no file or folder has that path, and the Hugging Face cache {} (HF_HUB_CACHE, "
        "HF_HOME) does not have it{}",
        name, cache, download);
  }
  // The branch `main` names a commit, whose files are in a folder of that name.
  constexpr std::uint64_t kLongestCommit = 200;
  const Result<std::string> ref = read_text_file(model + "/refs/main", kLongestCommit);
  const std::string commit = ref.ok() ? ref->substr(0, ref->find_last_not_of("\n ") + 1) : std::string();
  const std::string folder = model + "/snapshots/" + commit;
  if (!is_plain_name(commit) || !is_folder(folder)) {
    return invalid_error("{}: refs/main names no folder of snapshots, so {} is not there as a whole{}", model,
                         name, download);
  }
  Result<SpeechModelLocation> place = look_into(folder);
  if (place.ok()) {
    place->advice = "; if that is not all of it: hf download " + name;
    return place;
  }
  return Status(place.status().code(), place.status().message() + download);
}

}  // namespace

std::string hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string cache = variable(name); !cache.empty()) return expanded(cache);
  }
  if (const std::string home = variable("HF_HOME"); !home.empty()) return expanded(home) + "/hub";
  const std::string caches = variable("XDG_CACHE_HOME");
  return (caches.empty() ? variable("HOME") + "/.cache" : expanded(caches)) + "/huggingface/hub";
}

Result<SpeechModelLocation> find_speech_model(const std::string& name) {
  if (is_folder(name)) return look_into(name);
  if (::access(name.c_str(), F_OK) == 0) {
    if (!name.ends_with(".safetensors")) return SpeechModelLocation{name, SpeechFiles::nemo};
    return Status::invalid(name + ": is a file of tensors alone; give the folder that has config.json too");
  }
  if (is_hub_name(name)) return look_into_cache(name);
  return Status::invalid(name +
                         ": does not exist; expected a .nemo file, a folder with config.json and "
                         "model.safetensors, or a name of the hub such as nvidia/parakeet-tdt-0.6b-v3");
}

}  // namespace octavo_train
