// Recordings in files through a listener: opened and read by threads, long ones in windows that overlap, and
// put together again. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/listening.h"

#include <octavo/status.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace octavo::train {

struct TranscribeOptions {
  double window = 20;  // seconds; longer recordings are cut into windows of no more
  double overlap = 2;  // seconds on both sides of a window that its neighbours hear too
  ListeningOptions listening = {};
};

struct HeardFile {
  double seconds = 0;  // of the recording
  Heard heard;
};

struct TranscribeEvents {
  // The file's number, and what was heard or what is wrong with it. Once for each, as soon as it is known.
  std::function<void(std::size_t, Result<HeardFile>)> done;
  // Now and then: seconds that were heard, of how many.
  std::function<void(double, double)> progress;
};

// A bad file does not keep the others. Throws what `hear` and the events throw.
void transcribe_files(const Hearing& hearing, std::span<const std::string> paths,
                      const TranscribeOptions& options, const TranscribeEvents& events);

}  // namespace octavo::train
