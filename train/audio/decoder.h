// Decodes one open recording with libsndfile, from front to back or from a given frame, and mixes it down to
// mono.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/audio/audio.h"
#include "train/io/files.h"

#include <memory>

#include <sndfile.h>

namespace octavo_train {

// Checks a recording's first and last bytes before a decoder reads it: that the format is supported and that
// the file is complete. The check is needed because libsndfile silently shortens a truncated file, and mpg123
// writes to the terminal. Leaves the file position unspecified.
Status check_header(const InputFile& input, const std::string& path);

class Decoder {
 public:
  // Opens a file and checks its header. `channel` has the meaning of AudioRequest::channel.
  static Result<Decoder> open(const std::string& path, std::optional<int> channel);

  [[nodiscard]] const AudioInfo& info() const { return info_; }

  Status seek(std::int64_t frame);  // REQUIRES: position() <= frame <= info().frames

  // Appends up to `frames` samples. Appends fewer only at the end of the file.
  Status read(std::int64_t frames, std::vector<float>& samples);

  // Returns the position of the next frame to read, in frames of the file.
  [[nodiscard]] std::int64_t position() const { return position_; }

  // Returns an error if the header promised more frames than were read. Call it when read() appends fewer
  // samples than requested.
  [[nodiscard]] Status check_end() const;

 private:
  struct Close {
    void operator()(SNDFILE* file) const { sf_close(file); }
  };
  Decoder() = default;
  Status start(SF_INFO& found);
  Status check(const SF_INFO& found) const;
  Status skip(std::int64_t frames);
  Status jump(std::int64_t frame);
  Status count_frames(SF_INFO& found);
  [[nodiscard]] Status library_error(const std::string& action) const;

  InputFile input_;  // must stay open as long as file_
  std::unique_ptr<SNDFILE, Close> file_;
  std::string path_;
  AudioInfo info_;
  std::optional<int> channel_;
  bool vorbis_ = false;
  std::int64_t position_ = 0;
  std::vector<float> block_;  // interleaved
};

}  // namespace octavo_train
