// SPDX-License-Identifier: MIT
#include "train/tasks/speech/data/skipped_clips.h"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace octavo_train {
namespace {

constexpr const char* kPlace = "place";

std::string line_of(const SkippedClip& clip) {
  const nlohmann::ordered_json json = {{kPlace, clip.place}, {"audio", clip.audio}, {"reason", clip.reason}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

// Returns the place in a line, or an empty string if the line is incomplete because the run ended while
// writing it.
std::string place_in(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  return json.is_object() && json.contains(kPlace) && json[kPlace].is_string()
             ? json[kPlace].get<std::string>()
             : std::string();
}

}  // namespace

Status SkippedClips::write(const std::string& lines) {
  const bool written = std::fwrite(lines.data(), 1, lines.size(), file_.get()) == lines.size();
  if (written && std::fflush(file_.get()) == 0) return {};
  return Status::failed(path_ + ": cannot be written: " + std::strerror(errno));
}

Status SkippedClips::list_in(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  const std::string path = folder + "/" + kSkippedName;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "a+b"), std::fclose);
  if (file == nullptr) return Status::failed(path + ": cannot be opened: " + std::strerror(errno));
  std::set<std::string> listed;
  std::string line;
  std::rewind(file.get());
  for (int c = std::getc(file.get()); c != EOF; c = std::getc(file.get())) {
    line += static_cast<char>(c);
    if (c != '\n') continue;
    listed.insert(place_in(line));
    line.clear();
  }
  std::fseek(file.get(), 0, SEEK_END);
  if (!line.empty()) waiting_.insert(0, "\n");  // ends the incomplete line
  file_ = std::move(file);
  path_ = path;
  std::string lines;
  for (std::size_t at = 0; at < waiting_.size();) {
    const std::size_t end = waiting_.find('\n', at) + 1;
    line = waiting_.substr(at, end - at);
    at = end;
    if (line == "\n" || !listed.contains(place_in(line))) lines += line;
  }
  waiting_.clear();
  listed.erase("");
  places_.merge(listed);
  return write(lines);
}

Status SkippedClips::add(const SkippedClip& clip) {
  const std::lock_guard lock(mutex_);
  if (!places_.insert(clip.place).second) return {};
  if (file_ != nullptr) return write(line_of(clip));
  waiting_ += line_of(clip);
  return {};
}

std::int64_t SkippedClips::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(places_.size());
}

std::string SkippedClips::path() const {
  const std::lock_guard lock(mutex_);
  return path_;
}

}  // namespace octavo_train
