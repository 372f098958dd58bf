// Writes recordings; see audio.h.
// SPDX-License-Identifier: MIT
#include "train/audio/audio.h"
#include "train/io/files.h"
#include "train/io/output_file.h"

#include <fcntl.h>
#include <sndfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>

namespace octavo_train {
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

// A temporary file that libsndfile writes through the callbacks below, because some of its encoders ignore
// write errors. The file is removed unless `kept` is set.
struct Partial {
  std::string path;
  FileDescriptor descriptor;
  int error = 0;
  bool kept = false;

  explicit Partial(std::string name) : path(std::move(name)) {
    descriptor = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (descriptor.get() < 0) error = errno;
  }
  Partial(const Partial&) = delete;
  Partial& operator=(const Partial&) = delete;
  ~Partial() {
    if (!kept && descriptor.get() >= 0) ::unlink(path.c_str());
  }
};

int number_of(void* partial) { return static_cast<Partial*>(partial)->descriptor.get(); }

sf_count_t length_of(void* partial) {
  struct stat info {};
  return ::fstat(number_of(partial), &info) == 0 ? info.st_size : -1;
}

sf_count_t write_to(const void* data, sf_count_t count, void* partial) {
  sf_count_t done = 0;
  while (done < count) {
    const ssize_t got = ::write(number_of(partial), static_cast<const char*>(data) + done,
                                static_cast<std::size_t>(count - done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      static_cast<Partial*>(partial)->error = errno;
      break;
    }
    done += got;
  }
  return done;
}

SF_VIRTUAL_IO through_us() {
  return {length_of,
          [](sf_count_t offset, int from, void* file) -> sf_count_t {
            return ::lseek(number_of(file), offset, from);
          },
          [](void* data, sf_count_t count, void* file) -> sf_count_t {
            return ::read(number_of(file), data, static_cast<std::size_t>(count));
          },
          write_to, [](void* file) -> sf_count_t { return ::lseek(number_of(file), 0, SEEK_CUR); }};
}

// Returns true if all samples were written. Rounds to integers here, because libsndfile's conversion does not
// round to the nearest.
bool write_samples(SNDFILE* file, bool integers, std::span<const float> samples) {
  std::vector<std::int16_t> rounded;
  std::vector<float> clipped;
  for (; !samples.empty();) {
    const auto piece = samples.first(std::min<std::size_t>(samples.size(), 1 << 14));
    const auto count = static_cast<sf_count_t>(piece.size());
    rounded.clear();
    clipped.clear();
    for (const float x : piece) {
      if (integers) {
        rounded.push_back(static_cast<std::int16_t>(std::lrint(std::clamp(x * 32768, -32768.0F, 32767.0F))));
      } else {
        clipped.push_back(std::clamp(x, -1.0F, 1.0F));
      }
    }
    const sf_count_t done = integers ? sf_writef_short(file, rounded.data(), count)
                                     : sf_writef_float(file, clipped.data(), count);
    if (done != count) return false;
    samples = samples.subspan(piece.size());
  }
  return true;
}

}  // namespace

Status write_audio(const std::string& path, std::span<const float> samples, int rate) {
  ASSIGN_OR_RETURN(const int format, format_of(path));
  SF_INFO info{};
  info.samplerate = rate;
  info.channels = 1;
  info.format = format;
  if (rate < kLowestRate || sf_format_check(&info) == 0) {
    return unsupported_error("{}: libsndfile cannot write this format at {} Hz", path, rate);
  }
  if (!std::ranges::all_of(samples, [](float x) { return std::isfinite(x); })) {
    return Status::invalid(path + ": a sample is not a number; nothing is written");
  }
  ASSIGN_OR_RETURN(const std::string partial, partial_path(path));
  Partial written(partial);
  if (written.error != 0) return system_error(path, "create", written.error);
  SF_VIRTUAL_IO ways = through_us();
  SNDFILE* file = sf_open_virtual(&ways, SFM_WRITE, &info, &written);
  if (file == nullptr) return failed_error("{}: cannot write: {}", path, sf_strerror(nullptr));
  const bool all = write_samples(file, (format & SF_FORMAT_SUBMASK) == SF_FORMAT_PCM_16, samples);
  const std::string reason = sf_strerror(file);
  const bool closed = sf_close(file) == 0;
  if (written.error != 0) return system_error(path, "write", written.error);
  if (!all || !closed) return failed_error("{}: cannot write: {}", path, reason);
  if (std::rename(partial.c_str(), path.c_str()) != 0) return system_error(path, "create", errno);
  written.kept = true;
  return {};
}

}  // namespace octavo_train
