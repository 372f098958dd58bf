// SPDX-License-Identifier: MIT
#include "train/tasks/speech/features/feature_cache.h"

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/formats/safetensors.h"
#include "train/formats/tensor_list.h"
#include "train/io/checksums.h"
#include "train/io/files.h"
#include "train/io/output_file.h"

#include <fmt/format.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>
#include <random>
#include <utility>

namespace octavo_train {
namespace {

constexpr const char* kTensor = "features";
constexpr const char* kVersion = "1";  // to be changed when the features' formula changes

// Returns the value with 17 digits and a decimal point, independent of the program's locale. The text is part
// of a file's name, which must be reproducible.
std::string exact(double value) { return decimal_text(value, std::chars_format::general, 17); }

// Returns a text of everything that determines the features. Dither is not part of it, because cached
// features are computed without dither.
std::string settings_text(const FeatureSettings& settings, const FeatureTables& tables) {
  std::string out = fmt::format("version {}, {} Hz", kVersion, settings.sample_rate);
  for (const std::int64_t each : {settings.window(), settings.hop(), settings.n_fft, settings.features})
    out += ' ' + std::to_string(each);
  for (const double each :
       {settings.lowfreq, settings.highest(), settings.preemph, settings.log_zero_guard_value})
    out += ' ' + exact(each);
  const FeatureTables made = make_feature_tables(settings);
  const auto add = [&](const std::vector<float>& given, const std::vector<float>& standard) {
    out += ' ' + xxh3_hex(std::as_bytes(std::span(given.empty() ? standard : given)));
  };
  add(tables.window, made.window);
  add(tables.filters, made.filters);
  return out;
}

// Returns the size and modification time of a recording, which detect a replaced file. Returns an empty text
// if the recording does not exist.
std::string state_of(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return {};
  return fmt::format("{} {}.{}", found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec);
}

Status make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return {};
  struct stat found {};
  const int error = errno;
  if (error == EEXIST && ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return {};
  return system_error(path, "make the folder", error);
}

Status make_folders(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    RETURN_IF_ERROR(make_folder(path.substr(0, slash)));
  }
  return make_folder(path);
}

// Returns a text that is unique to one write, across processes.
std::string unique_text() {
  static const std::string process = [] {
    std::random_device random;
    return std::to_string((std::uint64_t{random()} << 32) | random());
  }();
  static std::atomic<std::uint64_t> writes{0};
  return process + '-' + std::to_string(writes++);
}

// Removes the temporary files of runs that were killed while writing. A run renames its file within seconds,
// so a temporary file that is a day old has no writer.
void remove_abandoned(const std::string& folder) {
  constexpr std::time_t kDay = 86400;
  const std::time_t now = std::time(nullptr);
  const auto groups = list_folder(folder);
  if (!groups.ok()) return;
  for (const std::string& group : *groups) {
    if (group.size() != 2) continue;  // only the folders that path() names
    const auto names = list_folder(folder + '/' + group);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      if (!name.starts_with('.') || name.find(".safetensors.partial-") == std::string::npos) continue;
      const std::string path = folder + '/' + group + '/' + name;
      struct stat found {};
      if (::lstat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && now - found.st_mtime > kDay)
        ::unlink(path.c_str());
    }
  }
}

// Writes a file of features under a unique temporary name and renames it, so that two runs that share a
// folder may write the same clip at the same time. The file is not synced, because features can be computed
// again and the checksum detects an incomplete file.
Status write_features(const std::string& path, const TensorSource& source,
                      const std::map<std::string, std::string>& metadata) {
  RETURN_IF_ERROR(make_folder(parent_folder(path)));
  ASSIGN_OR_RETURN(const SafetensorsLayout layout, plan_safetensors({&source, 1}, metadata));
  ASSIGN_OR_RETURN(const std::string partial, partial_path(path));
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(partial + '-' + unique_text(), {0, layout.size}));
  RETURN_IF_ERROR(write_planned(file, layout, {&source, 1}));
  return file.rename_to(path);
}

}  // namespace

void FeatureCache::count(std::int64_t Report::*which) const {
  const std::lock_guard lock(counts_->mutex);
  ++(counts_->report.*which);
}

Result<FeatureCache> FeatureCache::open(const std::string& folder, const FeatureSettings& settings,
                                        const FeatureTables& tables) {
  FeatureCache out;
  out.folder_ = folder;
  out.settings_ = settings_text(settings, tables);
  out.bands_ = settings.features;
  RETURN_IF_ERROR(make_folders(folder));
  remove_abandoned(folder);
  return out;
}

std::string FeatureCache::path(const CachedClip& clip) const {
  const std::string text =
      settings_ + '\n' + exact(clip.offset) + ' ' + exact(clip.duration) + '\n' + clip.audio;
  const std::string name = xxh3_hex(text);
  return folder_ + '/' + name.substr(0, 2) + '/' + name.substr(2) + ".safetensors";
}

std::optional<std::vector<float>> FeatureCache::find(const CachedClip& clip) const {
  const std::string place = path(clip);
  struct stat there {};
  if (::stat(place.c_str(), &there) != 0) return std::nullopt;
  const auto file = Safetensors::open(place);
  const StoredTensor* const tensor = file.ok() ? file->find(kTensor) : nullptr;
  const auto says = [&](const char* key, const std::string& wanted) {
    const auto found = file->metadata().find(key);
    return found != file->metadata().end() && found->second == wanted;
  };
  const std::string now = state_of(clip.audio);
  const bool fits = tensor != nullptr && tensor->dtype == "F32" && tensor->shape.size() == 2 &&
                    tensor->shape[1] == bands_ && says("settings", settings_) &&
                    (now.empty() || says("recording", now)) && says("checksum", xxh3_hex(tensor->bytes));
  count(fits ? &Report::found : &Report::stale);
  if (!fits) return std::nullopt;
  std::vector<float> out(tensor->bytes.size() / sizeof(float));
  std::memcpy(out.data(), tensor->bytes.data(), tensor->bytes.size());
  return out;
}

void FeatureCache::keep(const CachedClip& clip, std::span<const float> features) const {
  if (!report().problem.empty()) return;
  const std::string place = path(clip);
  const Bytes bytes = std::as_bytes(features);
  const auto frames = static_cast<std::int64_t>(features.size()) / bands_;
  const TensorSource source{kTensor, "F32", {frames, bands_}, [bytes]() -> Result<Bytes> { return bytes; }};
  const std::map<std::string, std::string> metadata = {
      {"settings", settings_},
      {"recording", state_of(clip.audio)},
      {"clip", clip.audio + ' ' + exact(clip.offset) + ' ' + exact(clip.duration)},
      {"checksum", xxh3_hex(bytes)}};
  Status status = write_features(place, source, metadata);
  // The folder may have been removed since it was made.
  if (!status.ok() && !path_exists(parent_folder(place))) {
    status = make_folders(parent_folder(place));
    if (status.ok()) status = write_features(place, source, metadata);
  }
  const std::lock_guard lock(counts_->mutex);
  if (status.ok())
    ++counts_->report.kept;
  else if (counts_->report.problem.empty())
    counts_->report.problem = status.message();
}

FeatureCache::Report FeatureCache::report() const {
  const std::lock_guard lock(counts_->mutex);
  return counts_->report;
}

std::string FeatureCache::text() const {
  const Report all = report();
  const auto number = [](std::int64_t count) { return grouped(static_cast<double>(count)); };
  std::string out =
      fmt::format("data.cache_features: features of {} clips were read from {}, and of {} written",
                  number(all.found), folder_, number(all.kept));
  if (all.stale > 0)
    out += "; " + number(all.stale) + " files were damaged or of other recordings, and made again";
  if (!all.problem.empty()) out += "; then no more, because " + all.problem;
  return out;
}

}  // namespace octavo_train
