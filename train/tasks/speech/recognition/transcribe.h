// Transcribes recordings in files. Threads open and read them. Long recordings are cut into overlapping
// windows, whose transcripts are merged. Does not use LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/speech/recognition/batch_recognition.h"

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace octavo_train {

struct TranscribeOptions {
  double window = 20;  // seconds; the maximum length of a window, without overlap
  double overlap = 2;  // seconds on both sides of a window that its neighbors share
  BatchRecognitionOptions listening = {};
};

struct HeardFile {
  double seconds = 0;  // duration of the recording
  Transcription heard;
};

struct TranscribeEvents {
  // Receives the file's number, and its transcript or an error. Called once per file, as soon as its result
  // is available.
  std::function<void(std::size_t, Result<HeardFile>)> done;
  // Receives the seconds of audio transcribed so far and their total. Called after each window.
  std::function<void(double, double)> progress;
};

// Transcribes the files. A bad file does not stop the others. Throws what `hear` and the events throw.
void transcribe_files(const RecognizerInfo& hearing, std::span<const std::string> paths,
                      const TranscribeOptions& options, const TranscribeEvents& events);

}  // namespace octavo_train
