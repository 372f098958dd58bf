// Makes a folder of recordings for demos and tests that cannot download any: espeak-ng speaks sentences in
// several voices. By default the files have a sample rate of 16 kHz. One manifest lists the training clips,
// another one held-out clips with other sentences.
//
// A clip has silence around its sentence, and a share of the clips have two or three sentences with pauses.
// A model that was trained on single sentences without silence recognizes nothing else: an untrimmed
// recording is wrong, and a long one gives a few words.
//
// The sentences, voice, speed, pitch and silences of a clip depend only on the seed, the options and the
// clip's number. The samples depend on the release of espeak-ng, too.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/recordings/parallel.h"

#include <octavo/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::recordings {

struct SpeechOptions {
  std::int64_t clips = 3000, val_clips = 200;
  std::vector<std::string> voices = {"en-us", "en-gb", "en-us+f2", "en-gb+f3", "en-us+m3", "en-gb-scotland"};
  int slowest = 150, fastest = 190;  // words per minute
  double silence = 0.8;              // maximum seconds of silence before and after the sentences of a clip
  double joined = 0.33;              // share of the clips with more than one sentence, 0 to 1
  std::uint64_t seed = 1;
  int rate = 16000;
  std::string format = "flac";         // a file name extension that write_audio() supports
  std::vector<std::string> sentences;  // sentences to speak; empty: sentences of the grammar
};

struct MadeSpeech {
  double seconds = 0, val_seconds = 0;
  std::int64_t words = 0;  // different words
  bool was_there = false;
};

// Writes FOLDER/train/*.flac and FOLDER/val/*.flac, then FOLDER/train.jsonl and FOLDER/val.jsonl, and finally
// FOLDER/made.json, which describes the options. A folder whose made.json describes the same options is not
// changed. Any other folder that is not empty is an error unless `force`, which replaces files of the same
// names.
Result<MadeSpeech> make_speech(const std::string& folder, const SpeechOptions& options, bool force,
                               int threads, const Advance& advance);

}  // namespace octavo::recordings
