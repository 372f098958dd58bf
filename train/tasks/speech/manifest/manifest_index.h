// The in-memory index of a Manifest, 16 bytes per line. Only manifest.cc and manifest_open.cc include this
// file.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/io/file_descriptor.h"
#include "train/tasks/speech/manifest/manifest.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// A clip's line in the manifests (file, byte and line number) and the clip's duration.
class IndexedClip {
 public:
  static constexpr int kPlaceBits = 48;

  IndexedClip(std::size_t source, std::uint64_t byte, std::uint64_t line)
      : line_(static_cast<std::uint32_t>(line)), at_((std::uint64_t{source} << kPlaceBits) | byte) {}

  [[nodiscard]] std::size_t source() const { return at_ >> kPlaceBits; }
  [[nodiscard]] std::uint64_t byte() const { return at_ & ((std::uint64_t{1} << kPlaceBits) - 1); }
  [[nodiscard]] std::uint32_t line() const { return line_; }  // the first line is 1

  float seconds = 0;

 private:
  std::uint32_t line_;
  std::uint64_t at_;
};
static_assert(sizeof(IndexedClip) == 16);

struct ManifestFile {
  std::string path, folder;
  FileDescriptor descriptor;
};

struct Manifest::Index {
  ManifestOptions options;
  ManifestReport report;
  std::vector<ManifestFile> files;
  std::vector<IndexedClip> clips, left_out;
  std::vector<std::uint32_t> turns;  // the clip of each entry; empty: every clip once, in order
  std::string fingerprint;

  [[nodiscard]] std::size_t clip_of(std::int64_t index) const {
    const auto at = static_cast<std::size_t>(index);
    return turns.empty() ? at : turns[at];
  }
  [[nodiscard]] std::string place(const IndexedClip& clip) const {
    return files[clip.source()].path + ':' + std::to_string(clip.line());
  }
  [[noreturn]] void changed(const IndexedClip& clip, const std::string& reason) const {
    throw Error(Status::failed(place(clip) + ": the line has changed since the manifest was opened (" +
                               reason + "); start again"));
  }
};

inline std::string seconds_text(double seconds) { return significant(seconds, 6) + " s"; }

// Returns the line without the white space at its end.
inline std::string_view line_text(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t'))
    line.remove_suffix(1);
  return line;
}

}  // namespace octavo_train
