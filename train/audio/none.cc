// Implements audio.h in a build without the libraries: each function returns an error that names the packages
// to install.
// SPDX-License-Identifier: MIT
#include "train/audio/audio.h"

namespace octavo_train {
namespace {

Status not_built_in(const std::string& path) {
  return Status::unsupported(
      path +
      ": this build reads no recordings; install libsndfile1-dev, libsoxr-dev and libsentencepiece-dev, "
      "then build again with -DOCTAVO_AUDIO=ON");
}

}  // namespace

bool audio_built_in() { return false; }
Result<AudioInfo> probe_audio(const std::string& path) { return not_built_in(path); }
Result<AudioClip> read_audio(const AudioRequest& request) { return not_built_in(request.path); }
Status write_audio(const std::string& path, std::span<const float> /*samples*/, int /*rate*/) {
  return not_built_in(path);
}
std::vector<float> resampled(std::span<const float> /*samples*/, double /*from*/, double /*to*/) {
  return {};
}

}  // namespace octavo_train
