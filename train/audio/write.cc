// Writing a recording; see audio.h.
// SPDX-License-Identifier: MIT
#include "train/audio/audio.h"
#include "train/files/file_descriptor.h"
#include "train/files/output_file.h"

#include <fcntl.h>
#include <sndfile.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace octavo::train {
namespace {

Result<int> format_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  std::string extension =
      dot == std::string::npos || path.find('/', dot) != std::string::npos ? "" : path.substr(dot);
  std::ranges::transform(extension, extension.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (extension == ".wav") return SF_FORMAT_WAV | SF_FORMAT_PCM_16;
  if (extension == ".flac") return SF_FORMAT_FLAC | SF_FORMAT_PCM_16;
  if (extension == ".ogg") return SF_FORMAT_OGG | SF_FORMAT_VORBIS;
  if (extension == ".mp3") return SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III;
  return Status::invalid(path + ": expected a name that ends in .wav, .flac, .ogg or .mp3");
}

// Removes its file unless it was kept.
struct Partial {
  std::string path;
  bool kept = false;
  explicit Partial(std::string name) : path(std::move(name)) {}
  ~Partial() {
    if (!kept) ::unlink(path.c_str());
  }
};

}  // namespace

Status write_audio(const std::string& path, std::span<const float> samples, int rate) {
  const Result<int> format = format_of(path);
  if (!format.ok()) return format.status();
  SF_INFO info{};
  info.samplerate = rate;
  info.channels = 1;
  info.format = *format;
  if (rate < kLowestRate || sf_format_check(&info) == 0) {
    return Status::unsupported(path + ": libsndfile cannot write this format at " + std::to_string(rate) +
                               " Hz");
  }
  const Result<std::string> partial = partial_path(path);
  if (!partial.ok()) return partial.status();
  const FileDescriptor descriptor(::open(partial->c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (descriptor.get() < 0) return system_error(path, "create", errno);
  Partial written(*partial);
  SNDFILE* file = sf_open_fd(descriptor.get(), SFM_WRITE, &info, SF_FALSE);
  if (file == nullptr) return Status::failed(path + ": cannot write: " + sf_strerror(nullptr));
  sf_command(file, SFC_SET_CLIPPING, nullptr, SF_TRUE);
  errno = 0;
  const auto count = static_cast<sf_count_t>(samples.size());
  const bool all = sf_writef_float(file, samples.data(), count) == count;
  const int error = errno;
  const std::string reason = sf_strerror(file);
  const bool closed = sf_close(file) == 0;
  if (!all || !closed) {
    return error != 0 ? system_error(path, "write", error)
                      : Status::failed(path + ": cannot write: " + reason);
  }
  if (std::rename(partial->c_str(), path.c_str()) != 0) return system_error(path, "create", errno);
  written.kept = true;
  return {};
}

}  // namespace octavo::train
