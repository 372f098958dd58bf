// Makes a folder of recordings for demos and tests that cannot download one: espeak-ng reads sentences aloud
// in several voices. The files have 16 kHz. One manifest lists the clips to train on, another one held-out
// clips with other sentences.
//
// A clip has silence around its sentence, and a share of the clips have two or three sentences with pauses.
// A model that was trained on single sentences without silence recognizes nothing else: an untrimmed
// recording is wrong, and a long one gives a few words.
//
// The sentences, voice, speed, pitch and silences of a clip depend on the seed, the plan and the clip's
// number only. The samples are espeak-ng's: another release of it may speak otherwise.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/recordings/parallel.h"

#include <octavo/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::recordings {

struct SpeechPlan {
  std::int64_t clips = 3000, val_clips = 200;
  std::vector<std::string> voices = {"en-us", "en-gb", "en-us+f2", "en-gb+f3", "en-us+m3", "en-gb-scotland"};
  int slowest = 150, fastest = 190;  // words a minute
  double silence = 0.8;              // seconds before and after the sentences of a clip, at most
  double joined = 0.33;              // share of the clips with more than one sentence, 0 to 1
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

// Returns the texts of a plan without duplicates: those to train on, then the held-out ones. A clip begins
// with the text of its number or has it alone. Too few different texts are an error.
Result<std::vector<std::string>> texts_of(const SpeechPlan& plan);

}  // namespace octavo::recordings
