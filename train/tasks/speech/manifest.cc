// Reads the entries of manifests; see manifest.h. Lines are read one at a time with pread(). So memory does
// not grow with the number of entries read, and a file that has shrunk causes an error, not a signal.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/manifest.h"

#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/io/file_descriptor.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/manifest_index.h"
#include "train/tasks/speech/manifest_line.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::uint64_t kTextLimit = 1 << 20;  // bytes of a file that text_filepath names

std::string full_path(const std::string& folder, std::string path) {
  if (path.starts_with('/')) return path;
  if (path.starts_with("~/")) {
    const char* home = std::getenv("HOME");
    return home == nullptr ? path : home + path.substr(1);
  }
  std::string beside = folder.empty() ? path : folder + '/' + path;
  // Like NeMo, fall back to the working directory.
  if (!path_exists(beside) && path_exists(path)) return path;
  return beside;
}

// Returns the line that begins at a byte. Uses pread(), so several threads may call it concurrently.
Result<std::string> line_at(const ManifestFile& file, std::uint64_t byte) {
  std::string out;
  std::array<char, 1024> block{};
  for (;;) {
    const ssize_t count =
        ::pread(file.descriptor.get(), block.data(), block.size(), static_cast<off_t>(byte + out.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(file.path, "read", errno);
    const std::string_view got(block.data(), static_cast<std::size_t>(count));
    const std::size_t end = got.find('\n');
    out.append(got.substr(0, end));
    if (count == 0 || end != std::string_view::npos) return std::string(line_text(out));
  }
}

}  // namespace

Manifest::Manifest(std::unique_ptr<Index> index) : index_(std::move(index)) {}
Manifest::Manifest(Manifest&&) noexcept = default;
Manifest& Manifest::operator=(Manifest&&) noexcept = default;
Manifest::~Manifest() = default;

std::int64_t Manifest::size() const {
  return static_cast<std::int64_t>(index_->turns.empty() ? index_->clips.size() : index_->turns.size());
}
std::int64_t Manifest::clip(std::int64_t index) const {
  return static_cast<std::int64_t>(index_->clip_of(index));
}
double Manifest::duration(std::int64_t index) const { return index_->clips[index_->clip_of(index)].seconds; }
std::string Manifest::place(std::int64_t index) const {
  return index_->place(index_->clips[index_->clip_of(index)]);
}
const ManifestReport& Manifest::report() const { return index_->report; }
const ManifestOptions& Manifest::options() const { return index_->options; }
const std::string& Manifest::fingerprint() const { return index_->fingerprint; }
std::size_t Manifest::bytes() const {
  return (index_->clips.capacity() + index_->left_out.capacity()) * sizeof(IndexedClip) +
         index_->turns.capacity() * sizeof(std::uint32_t);
}

ManifestEntry Manifest::entry(std::int64_t index) const {
  const IndexedClip& clip = index_->clips[index_->clip_of(index)];
  const ManifestFile& file = index_->files[clip.source()];
  ManifestLine line;
  const std::string text = line_at(file, clip.byte()).value();
  if (const auto problem = read_manifest_line(text, index_->options, line))
    index_->changed(clip, problem->reason);
  if (static_cast<float>(line.entry.duration) != clip.seconds)
    index_->changed(clip, "its duration is another");
  if (!line.text_filepath.empty()) {
    auto read = read_text_file(full_path(file.folder, line.text_filepath), kTextLimit);
    if (!read.ok())
      throw Error(
          Status(read.status().code(), index_->place(clip) + ": text_filepath: " + read.status().message()));
    line.entry.text = line_text(std::string_view(*read).substr(0, read->find_last_not_of('\n') + 1));
  }
  line.entry.audio = full_path(file.folder, std::move(line.entry.audio));
  return std::move(line.entry);
}

SkippedClip Manifest::left_out(std::int64_t number) const {
  const IndexedClip& clip = index_->left_out[static_cast<std::size_t>(number)];
  const ManifestFile& file = index_->files[clip.source()];
  SkippedClip out{index_->place(clip), "", ""};
  const auto text = line_at(file, clip.byte());
  if (!text.ok()) {
    out.reason = text.status().message();
    return out;
  }
  ManifestLine line;
  if (const auto problem = read_manifest_line(*text, index_->options, line)) {
    out.place += ':' + std::to_string(column_of(*text, problem->byte));
    out.reason = problem->reason;
    return out;
  }
  const double seconds = line.entry.duration;
  const ManifestOptions& options = index_->options;
  out.audio = full_path(file.folder, std::move(line.entry.audio));
  if (line.unwanted) {
    out.reason = "_skipme is true";
  } else {
    out.reason =
        seconds < options.min_duration
            ? seconds_text(seconds) + " are shorter than min_duration " + seconds_text(options.min_duration)
            : seconds_text(seconds) + " are longer than max_duration " + seconds_text(options.max_duration);
  }
  return out;
}

}  // namespace octavo_train
