// SPDX-License-Identifier: MIT
#include "apps/octavo/recordings/make_speech.h"

#include "apps/octavo/recordings/espeak.h"
#include "apps/octavo/tales/tales.h"
#include "train/audio/audio.h"
#include "train/base/status.h"
#include "train/data/mix.h"
#include "train/io/files.h"
#include "train/io/text_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>
#include <span>
#include <sstream>
#include <string_view>

#include <sys/stat.h>

namespace octavo::recordings {
namespace {

using octavo_train::kGoldenGamma;
using octavo_train::mix;

constexpr const char* kMade = "made.json";
constexpr std::uint64_t kMostRecord = 1 << 20;  // limit of the size of made.json in bytes
constexpr int kLowestPitch = 40, kHighestPitch = 60;
constexpr int kMostTries = 50;           // maximum draws per wanted sentence, on average
constexpr std::uint64_t kMostExtra = 2;  // sentences of a joined clip after its first
constexpr double kLongestPause = 0.7;    // seconds between two sentences
constexpr double kLongestJoined = 15;    // seconds of a joined clip; training skips clips of more than 20

struct Clip {
  std::vector<std::string> sentences;
  std::vector<double> silences;  // seconds before each sentence, then after the last one
  std::string path;              // relative to the folder
  Reader reader;
  double seconds = 0;
};

// Returns draw number `at` of a clip's key: 0 … count - 1.
std::uint64_t below(std::uint64_t key, std::uint64_t at, std::uint64_t count) {
  return mix(key + (at + 1) * kGoldenGamma) % count;
}

std::uint64_t key_of(const SpeechOptions& options, std::int64_t number) {
  return mix(mix(options.seed) + static_cast<std::uint64_t>(number) * kGoldenGamma);
}

Reader reader_of(const SpeechOptions& options, std::int64_t number) {
  const std::uint64_t key = key_of(options, number);
  const auto between = [&](std::uint64_t at, int low, int high) {
    return low + static_cast<int>(below(key, at, static_cast<std::uint64_t>(high - low + 1)));
  };
  return {options.voices[below(key, 0, options.voices.size())], between(1, options.slowest, options.fastest),
          between(2, kLowestPitch, kHighestPitch)};
}

// Returns draw number `at` of a key, from 0 to below 1.
double share(std::uint64_t key, std::uint64_t at) {
  constexpr std::uint64_t kSteps = 1'000'000;
  return static_cast<double>(below(key, at, kSteps)) / static_cast<double>(kSteps);
}

// Draws the silences of a clip that has one sentence. A share `options.joined` of the clips gets one or two
// further sentences of `texts`.
void join_sentences(const SpeechOptions& options, std::int64_t number, std::span<const std::string> texts,
                    Clip& clip) {
  const std::uint64_t key = key_of(options, number);
  std::uint64_t at = 3;  // after the draws of reader_of()
  // Squares make short silences frequent: many programs write none before a sentence.
  const auto silence = [&] {
    const double drawn = share(key, at++);
    return options.silence * drawn * drawn;
  };
  clip.silences = {silence()};
  const bool joined = share(key, at++) < options.joined;
  const std::uint64_t extra = joined ? 1 + below(key, at++, kMostExtra) : 0;
  for (std::uint64_t i = 0; i < extra; ++i) {
    clip.sentences.push_back(texts[below(key, at++, texts.size())]);
    clip.silences.push_back(kLongestPause * share(key, at++));
  }
  clip.silences.push_back(silence());
}

nlohmann::ordered_json record_of(const SpeechOptions& options, const std::vector<std::string>& texts) {
  std::uint64_t hash = 0;
  for (const std::string& text : texts) {
    for (const char c : text + '\n') hash = mix(hash + kGoldenGamma + static_cast<unsigned char>(c));
  }
  return {{"made_by", "octavo data make-speech"},
          {"clips", options.clips},
          {"val_clips", options.val_clips},
          {"voices", options.voices},
          {"speed", {options.slowest, options.fastest}},
          {"seed", options.seed},
          {"rate", options.rate},
          {"format", options.format},
          {"silence", options.silence},
          {"joined", options.joined},
          {"texts", hash}};
}

Status make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) return {};
  return Status::failed(path + ": the folder cannot be made: " + std::strerror(errno));
}

// Returns whether the folder already holds the recordings of `record`. Returns an error if it holds anything
// else and `force` is off.
Result<bool> holds(const std::string& folder, nlohmann::ordered_json& record, bool force) {
  if (const auto text = octavo_train::read_text_file(folder + "/" + kMade, kMostRecord); text.ok()) {
    auto there = nlohmann::ordered_json::parse(*text, nullptr, false);
    if (there.is_object()) {
      nlohmann::ordered_json asked = there;
      asked.update(record);
      if (asked == there) {
        record = std::move(there);
        return true;
      }
    }
  }
  if (force) return false;
  ASSIGN_OR_RETURN(auto names, octavo_train::list_folder(folder));
  if (names.empty()) return false;
  return Status::failed(folder + ": the folder has other things in it; --force writes into it all the same");
}

// Speaks the sentences of a clip with silence around them, and writes its file. Drops further sentences that
// would make the clip too long.
Status speak_clip(const std::string& folder, int rate, Clip& clip) {
  std::vector<float> samples;
  const auto add_silence = [&](double seconds) {
    samples.resize(samples.size() + static_cast<std::size_t>(std::llround(seconds * rate)));
  };
  for (std::size_t i = 0; i < clip.sentences.size(); ++i) {
    ASSIGN_OR_RETURN(auto spoken, speak(clip.sentences[i], clip.reader));
    if (spoken.samples.empty())
      return Status::failed("espeak-ng produces no sound for '" + clip.sentences[i] + "'");
    const std::vector<float> sentence = octavo_train::resampled(spoken.samples, spoken.rate, rate);
    const double seconds = static_cast<double>(samples.size() + sentence.size()) / rate;
    if (i > 0 && seconds + clip.silences[i] > kLongestJoined) {
      clip.sentences.resize(i);
      break;
    }
    add_silence(clip.silences[i]);
    samples.insert(samples.end(), sentence.begin(), sentence.end());
  }
  add_silence(clip.silences.back());
  clip.seconds = static_cast<double>(samples.size()) / rate;
  return octavo_train::write_audio(folder + "/" + clip.path, samples, rate);
}

std::string text_of(const Clip& clip) {
  std::string out;
  for (const std::string& each : clip.sentences) out += (out.empty() ? "" : " ") + each;
  return out;
}

std::string line_of(const Clip& clip) {
  const nlohmann::ordered_json line = {
      {"audio_filepath", clip.path},
      {"duration", std::round(clip.seconds * 1000) / 1000},
      {"text", text_of(clip)},
      {"lang", clip.reader.voice.substr(0, clip.reader.voice.find_first_of("-+"))},
      {"speaker", clip.reader.voice}};
  return line.dump() + '\n';
}

std::vector<Clip> clips_of(const SpeechOptions& options, std::span<const std::string> texts) {
  const auto train_texts = static_cast<std::size_t>(options.clips);
  std::vector<Clip> out;
  for (std::int64_t i = 0; i < options.clips + options.val_clips; ++i) {
    const bool val = i >= options.clips;
    Clip clip;
    clip.sentences = {texts[static_cast<std::size_t>(i)]};
    clip.path = fmt::format("{}/{:05}.{}", val ? "val" : "train", val ? i - options.clips + 1 : i + 1,
                            options.format);
    clip.reader = reader_of(options, i);
    // A held-out clip is joined with held-out sentences only.
    join_sentences(options, i, val ? texts.subspan(train_texts) : texts.first(train_texts), clip);
    out.push_back(std::move(clip));
  }
  return out;
}

// Returns the texts without duplicates: the training texts, then the held-out texts. Clip i begins with text
// i, or consists of it. Too few different texts are an error.
Result<std::vector<std::string>> texts_of(const SpeechOptions& options) {
  const auto wanted = static_cast<std::size_t>(options.clips + options.val_clips);
  std::vector<std::string> out;
  std::set<std::string> seen;
  if (!options.sentences.empty()) {
    for (const std::string& each : options.sentences) {
      if (out.size() < wanted && seen.insert(each).second) out.push_back(each);
    }
  } else {
    for (std::uint64_t number = 1; out.size() < wanted && number <= wanted * kMostTries; ++number) {
      std::string each = tales::make_sentence(options.seed, number);
      if (seen.insert(each).second) out.push_back(std::move(each));
    }
  }
  if (out.size() == wanted) return out;
  return Status::invalid(
      fmt::format("clips: got {} in all, but there are only {} different sentences: ask for as many or fewer",
                  wanted, out.size()));
}

}  // namespace

Result<MadeSpeech> make_speech(const std::string& folder, const SpeechOptions& options, bool force,
                               int threads, const Advance& advance) {
  if (!octavo_train::audio_built_in())
    return octavo_train::write_audio(folder, {},
                                     options.rate);  // returns the error that names what to install
  ASSIGN_OR_RETURN(const auto texts, texts_of(options));
  MadeSpeech out;
  std::set<std::string> words;
  for (const std::string& text : texts) {
    std::istringstream stream(text);
    for (std::string word; stream >> word;) words.insert(word);
  }
  out.words = static_cast<std::int64_t>(words.size());
  nlohmann::ordered_json record = record_of(options, texts);
  ASSIGN_OR_RETURN(const auto there, holds(folder, record, force));
  out.was_there = there;
  if (out.was_there) {
    out.seconds = record.value("seconds", 0.0);
    out.val_seconds = record.value("val_seconds", 0.0);
    return out;
  }
  for (const std::string& voice : options.voices) {  // stops before any work if a voice does not work
    if (const auto spoken = speak(texts.front(), {voice}); !spoken.ok()) return spoken.status();
  }
  for (const std::string& each : {folder, folder + "/train", folder + "/val"}) {
    RETURN_IF_ERROR(make_folder(each));
  }
  std::remove((folder + "/" + kMade).c_str());  // made.json is valid only after all files are written
  std::vector<Clip> clips = clips_of(options, texts);
  const auto speak_one = [&](std::int64_t i) {
    return speak_clip(folder, options.rate, clips[static_cast<std::size_t>(i)]);
  };
  RETURN_IF_ERROR(for_each_number(options.clips + options.val_clips, threads, advance, speak_one));
  std::string train, val;
  for (std::size_t i = 0; i < clips.size(); ++i) {
    const bool held_out = i >= static_cast<std::size_t>(options.clips);
    (held_out ? val : train) += line_of(clips[i]);
    (held_out ? out.val_seconds : out.seconds) += clips[i].seconds;
  }
  record["seconds"] = out.seconds;
  record["val_seconds"] = out.val_seconds;
  for (const auto& [name, text] :
       {std::pair{"train.jsonl", train}, {"val.jsonl", val}, {kMade, record.dump(2) + '\n'}}) {
    RETURN_IF_ERROR(octavo_train::write_text_file(folder + "/" + name, text));
  }
  return out;
}

}  // namespace octavo::recordings
