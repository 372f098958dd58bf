// A folder of recordings for demos and tests that cannot download one: sentences, read aloud by espeak-ng in
// several voices, as files of 16 kHz, with a manifest to train on and one of sentences that the first does
// not have.
//
// Which sentence, voice, speed and pitch a clip has follows from the seed and its number alone. The samples
// are espeak-ng's: another release of it may speak otherwise.
// SPDX-License-Identifier: MIT
#pragma once

#include "recordings/parallel.h"

#include <octavo/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::recordings {

struct SpeechPlan {
  std::int64_t clips = 3000, val_clips = 200;
  std::vector<std::string> voices = {"en-us", "en-gb", "en-us+f2", "en-gb+f3", "en-us+m3", "en-gb-scotland"};
  int slowest = 150, fastest = 190;  // words a minute
  std::uint64_t seed = 1;
  int rate = 16000;
  std::string format = "flac";         // an extension that write_audio() knows
  std::vector<std::string> sentences;  // to read instead of the grammar's; none: those
};

struct MadeSpeech {
  double seconds = 0, val_seconds = 0;
  std::int64_t words = 0;  // different ones
  bool was_there = false;
};

// Writes FOLDER/train/*.flac, FOLDER/val/*.flac, then FOLDER/train.jsonl and FOLDER/val.jsonl, last of all
// FOLDER/made.json: what the folder was made of. A folder that has it for the same plan is left alone; one
// with other things in it is an error unless `force`, which replaces files of the same names.
Result<MadeSpeech> make_speech(const std::string& folder, const SpeechPlan& plan, bool force, int threads,
                               const Advance& advance);

// The texts of a plan: those to train on, then the held-out ones; each is there once. An error where there
// are too few.
Result<std::vector<std::string>> texts_of(const SpeechPlan& plan);

}  // namespace octavo::recordings
