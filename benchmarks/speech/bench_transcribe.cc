// Implements `octavo bench transcribe`: a model with random weights transcribes synthetic sound, from memory
// and from files.
// SPDX-License-Identifier: MIT
#include "benchmarks/speech/commands.h"
#include "cli/cli.h"
#include "cli/hardware_json.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "train/audio/audio.h"
#include "train/base/numbers.h"
#include "train/device/device.h"
#include "train/io/files.h"
#include "train/model/model.h"
#include "train/tasks/speech/model/speech_model.h"
#include "train/tasks/speech/recognition/batch_recognition.h"
#include "train/tasks/speech/recognition/recognizer.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace octavo::cli {
namespace {

using Json = nlohmann::ordered_json;
using Samples = std::vector<float>;

constexpr std::uint64_t kDifferent = 32;  // number of distinct sounds; each clip is one of them

// Makes a tokenizer with `tokens` tokens (the model's number), each a word.
octavo_train::Tokenizer make_tokenizer(std::int64_t tokens) {
  std::int64_t line = 0;
  const auto next = [&](std::string& out) {
    out = "w" + std::to_string(line);
    return line++ < tokens;  // one token is <unk>
  };
  return take(octavo_train::Tokenizer::from_bytes(
      take(octavo_train::train_tokenizer({.vocabulary = tokens, .kind = "word"}, next)),
      "the benchmark's tokenizer"));
}

struct Row {
  std::string from;
  double batch_seconds = 0;
  double took = 0, sound = 0, tokens_per_second = 0;
  [[nodiscard]] double times_real_time() const { return sound / took; }
};

class Bench {
 public:
  Bench(const TranscribeBenchRequest& request, const octavo_train::RecognizerOptions& options)
      : request_(request),
        settings_(settings_of(request.model)),
        model_(
            (octavo_train::seed_random(0, 0, 0), std::make_shared<octavo_train::SpeechModelImpl>(settings_))),
        recognizer_(make_recognizer(options)) {
    for (std::uint64_t i = 0; i < std::min(kDifferent, static_cast<std::uint64_t>(request.clips)); ++i)
      sounds_.push_back(make_sound(i, recognizer_.rate(), request.seconds));
  }

  // Sets blank's bias so that the model emits about the requested number of tokens per second.
  void set_rate() {
    const ::torch::NoGradGuard no_grad;
    ::torch::Tensor bias = head("bias"), weight = head("weight");
    weight.mul_(10);  // makes frames differ
    const ::torch::Tensor blank = bias[settings_.blank()];
    double low = -32, high = 32;  // bounds of the bias: many tokens at `low`, none at `high`
    double best = high, miss = request_.tokens_per_second;
    for (int i = 0; i < 14; ++i) {
      const double middle = (low + high) / 2;
      blank.fill_(middle);
      const double more = rate_of_few() - request_.tokens_per_second;
      if (std::abs(more) < miss) {
        miss = std::abs(more);
        best = middle;
      }
      (more > 0 ? low : high) = middle;
    }
    blank.fill_(best);
  }

  Row measure(const std::string& from, double batch_seconds) {
    Row row{from, batch_seconds, 0, 0, 0};
    std::int64_t tokens = 0;
    const auto count = [&](double seconds, const octavo_train::Transcription& transcribed) {
      row.sound += seconds;
      tokens += std::ssize(transcribed.tokens);
    };
    const auto warm = static_cast<std::int64_t>(std::ceil(batch_seconds / request_.seconds));
    for (const std::int64_t clips : {std::min(warm, request_.clips), request_.clips}) {
      row.sound = 0;
      tokens = 0;
      const double begin = now();
      from == "memory" ? transcribe_memory(clips, batch_seconds, count)
                       : transcribe_files(from, clips, batch_seconds, count);
      row.took = now() - begin;
    }
    row.tokens_per_second = static_cast<double>(tokens) / row.sound;
    return row;
  }

  [[nodiscard]] std::string device_text() const { return recognizer_.device_text(); }
  [[nodiscard]] std::int64_t parameters() const {
    std::int64_t out = 0;
    for (const ::torch::Tensor& each : model_->parameters()) out += each.numel();
    return out;
  }

 private:
  using Count = std::function<void(double, const octavo_train::Transcription&)>;

  octavo_train::Recognizer make_recognizer(const octavo_train::RecognizerOptions& options) {
    octavo_train::FeatureSettings features;
    features.features = settings_.mel_bands;
    return take(octavo_train::Recognizer::from_model(model_, make_tokenizer(settings_.vocabulary), features,
                                                     options));
  }

  [[nodiscard]] ::torch::Tensor head(const std::string& what) const {
    return model_->named_parameters()[(request_.model.head == "ctc" ? "ctc_head." : "joint.head.") + what];
  }

  double rate_of_few() {
    std::vector<std::span<const float>> clips;
    double seconds = 0, tokens = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(4, sounds_.size()); ++i) clips.emplace_back(sounds_[i]);
    for (const octavo_train::Transcription& each : recognizer_.transcribe(clips)) {
      seconds += request_.seconds;
      tokens += static_cast<double>(each.tokens.size());
    }
    return tokens / seconds;
  }

  [[nodiscard]] octavo_train::BatchRecognitionOptions batch_options(double batch_seconds) const {
    octavo_train::BatchRecognitionOptions out;
    out.batch_seconds = batch_seconds;
    out.batch_clips = static_cast<std::size_t>(request_.clips);
    out.threads = request_.threads;
    return out;
  }

  void transcribe_memory(std::int64_t clips, double batch_seconds, const Count& count) {
    std::vector<octavo_train::ClipInput> all;
    for (std::int64_t i = 0; i < clips; ++i) {
      const Samples& sound = sounds_[static_cast<std::size_t>(i) % sounds_.size()];
      all.push_back({request_.seconds, [&sound]() -> Result<Samples> { return sound; }});
    }
    octavo_train::transcribe_all(recognizer_.info().transcribe, all, batch_options(batch_seconds),
                                 [&](std::size_t, Result<octavo_train::Transcription> transcribed) {
                                   count(request_.seconds, take(std::move(transcribed)));
                                 });
  }

  void transcribe_files(const std::string& extension, std::int64_t clips, double batch_seconds,
                        const Count& count) {
    const std::vector<std::string> paths = files(extension, clips);
    octavo_train::TranscribeOptions options;
    options.window = request_.seconds + 1;  // each file fits one window
    options.batches = batch_options(batch_seconds);
    const auto done = [&](std::size_t, Result<octavo_train::FileTranscription> file) {
      const octavo_train::FileTranscription transcribed = take(std::move(file));
      count(transcribed.seconds, transcribed.transcription);
    };
    octavo_train::transcribe_files(recognizer_.info(), paths, options, {done, {}});
  }

  std::vector<std::string> files(const std::string& extension, std::int64_t clips) {
    if (!folder_) {
      const auto place =
          std::filesystem::temp_directory_path() / ("octavo-sound-" + std::to_string(getpid()));
      folder_ = take(octavo_train::ScratchFolder::make(place.string()));
    }
    std::vector<std::string> out;
    const int rate = extension == "mp3" ? 44100 : recognizer_.rate();
    for (std::int64_t i = 0; i < clips; ++i) {
      const std::size_t number = static_cast<std::size_t>(i) % sounds_.size();
      out.push_back(folder_->path() + '/' + std::to_string(number) + '.' + extension);
      if (std::filesystem::exists(out.back())) continue;
      const Samples sound =
          rate == recognizer_.rate() ? sounds_[number] : make_sound(number, rate, request_.seconds);
      check(octavo_train::write_audio(out.back(), sound, rate));
    }
    return out;
  }

  const TranscribeBenchRequest& request_;
  octavo_train::SpeechModelSettings settings_;
  std::shared_ptr<octavo_train::SpeechModelImpl> model_;
  octavo_train::Recognizer recognizer_;
  std::vector<Samples> sounds_;
  std::optional<octavo_train::ScratchFolder> folder_;
};

std::string table_of(const TranscribeBenchRequest& request, const Bench& bench,
                     const std::vector<Row>& rows) {
  Table table({{"from"},
               {"batch", Table::Align::right},
               {"sound", Table::Align::right},
               {"took", Table::Align::right},
               {"times real time", Table::Align::right},
               {"tokens/s", Table::Align::right}});
  const auto seconds = [](double value, int digits) {
    return octavo_train::significant(value, digits) + " s";
  };
  for (const Row& row : rows) {
    table.add({row.from, seconds(row.batch_seconds, 6), seconds(row.sound, 6), seconds(row.took, 4),
               grouped(std::llround(row.times_real_time())), fixed(row.tokens_per_second, 1)});
  }
  return model_text(request.model, bench.parameters()) + ", random weights), clips of " +
         seconds(request.seconds, 4) + ", computing in " + request.dtype + ", on " + bench.device_text() +
         "\n\n" + table.text();
}

std::string json_of(const TranscribeBenchRequest& request, const Bench& bench, const std::vector<Row>& rows) {
  Json out = {{"size", request.model.size},       {"head", request.model.head},
              {"parameters", bench.parameters()}, {"seconds", request.seconds},
              {"clips", request.clips},           {"dtype", request.dtype},
              {"device", bench.device_text()}};
  out["cpu"] = cpu_json();
  out["rows"] = Json::array();
  for (const Row& row : rows) {
    out["rows"].push_back({{"from", row.from},
                           {"batch_seconds", row.batch_seconds},
                           {"sound_seconds", row.sound},
                           {"seconds", row.took},
                           {"times_real_time", row.times_real_time()},
                           {"tokens_per_second", row.tokens_per_second}});
  }
  return out.dump(2) + '\n';
}

}  // namespace

void bench_transcribe(const TranscribeBenchRequest& request, const octavo_train::RecognizerOptions& options) {
  Bench bench(request, options);
  std::vector<Row> rows;
  {
    Progress progress;
    progress.say("setting the token rate of the random weights");
    bench.set_rate();
    for (const std::string& from : request.from) {
      for (const double batch : request.batch_seconds) {
        progress.say("from " + from + ", batches of " + octavo_train::significant(batch, 6) + " s");
        rows.push_back(bench.measure(from, batch));
      }
    }
  }
  std::cout << (request.json ? json_of(request, bench, rows) : table_of(request, bench, rows));
}

}  // namespace octavo::cli
