// Defines the command lines of `octavo bench speech` and `octavo bench transcribe`, and the parts that the
// benchmarks of the speech task share.
// SPDX-License-Identifier: MIT
#include "benchmarks/speech/commands.h"

#include "cli/cli.h"
#include "cli/options.h"
#include "train/base/numbers.h"
#include "train/base/text.h"
#include "train/data/mix.h"
#include "train/tasks/speech/config/keys.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numbers>
#include <optional>
#include <utility>

namespace octavo::cli {
namespace {

constexpr std::int64_t kMostClips = 4096, kMostTokens = 100000, kMostSteps = 100000, kMostAccumulation = 4096;

std::string speech_bench_footer() {
  using namespace octavo_train::recipe;
  return "For example:\n"
         "  octavo bench speech                  the parts of a step of Parakeet TDT 0.6B v3\n"
         "  octavo bench speech --checkpointing off,on --optimizer " +
         joined(std::vector{kWithFp32, kOptimizer, kWith4bit}, ",") + R"(
  octavo bench speech --fp8 delayed    the speed of FP8 matmuls, and of the step
  octavo bench speech --size tiny --clips 2 --seconds 2 --tokens 5 --device cpu

Weights, recordings and labels are random. Three steps warm up, one step is measured for its memory, and
then --steps steps are timed. On a GPU, events time the parts without waiting; "rest" is the time of a step
that is in no part. Memory by owner: "activations" is what the forward pass has saved when the loss begins,
"loss" is the peak of joint and loss beyond that and beyond the gradients. Not all owners reach their size
at the moment of the peak.)";
}

constexpr const char* kTranscribeBenchFooter = R"(For example:
  octavo bench transcribe                                  Parakeet TDT 0.6B v3, clips in memory
  octavo bench transcribe --from memory,flac,mp3 --batch-seconds 320,1200,4800
  octavo bench transcribe --size tiny --clips 8 --seconds 2 --device cpu

Weights are random. The bias of blank is set so that the model emits about --tokens-per-second, as for
speech: random weights alone would emit no token, or ten per frame. The table has their number. A row's time
is from the first file to the last text, after one untimed batch. There are 32 different files, which are
read repeatedly: WAV and FLAC at 16 kHz, MP3 at 44.1 kHz.)";

void add_model(const AddOption& option, BenchModel& model) {
  option("--size", model.size, "NAME", "Model: v2, v3, tiny, or the layers/width of its encoder: 12/512");
  option("--head", model.head, "NAME", "Head of the model")->check(CLI::IsMember({"tdt", "rnnt", "ctc"}));
}

// Parses "12/512".
std::optional<std::pair<std::int64_t, std::int64_t>> layers_and_width(std::string_view size) {
  const std::size_t slash = std::min(size.find('/'), size.size());
  const auto layers = octavo_train::parse_number<std::int64_t>(size.substr(0, slash));
  const auto width = octavo_train::parse_number<std::int64_t>(size.substr(std::min(slash + 1, size.size())));
  if (!layers || !width || *layers < 1 || *width < 8 || *width % 8 != 0) return std::nullopt;
  return std::pair{*layers, *width};
}

}  // namespace

void add_bench_speech(CLI::App& bench, const std::function<void(const SpeechBenchRequest&)>& action) {
  CLI::App* command = bench.add_subcommand(
      "speech", "Time a training step of the speech model, part by part, with its memory");
  auto request = std::make_shared<SpeechBenchRequest>();
  const AddOption option{*command};
  option("--clips", request->clips, "LIST", "Clips in a micro-batch, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, kMostClips));
  option("--seconds", request->seconds, "S", "Length of a clip, of 100 frames a second")
      ->check(CLI::Range(0.01, 3600.0));
  option("--tokens", request->tokens, "N", "Labels of a clip")
      ->check(CLI::Range(std::int64_t{0}, kMostTokens));
  option("--checkpointing", request->checkpointing, "LIST",
         "off, on, encoder or decoder, comma-separated: the part whose activations the backward pass "
         "recomputes")
      ->delimiter(',')
      ->check(CLI::IsMember({"off", "on", "encoder", "decoder"}));
  option("--optimizer", request->optimizers, "LIST", "Optimizers of training.optimizer, comma-separated")
      ->delimiter(',');
  add_model(option, request->model);
  option("--dtype", request->dtype, "NAME",
         "Compute type, as training.compute_dtype: bfloat16, float16 or float32");
  option("--master", request->master, "NAME",
         "Master weights, as training.master_weights: auto, 24, 32, stochastic or none");
  option("--device", request->device, "NAME", "Device: auto, cpu, cuda or cuda:1");
  option("--fp8", request->fp8, "NAME",
         "FP8 matmuls: off, or a recipe of training.fp8.recipe: delayed, current, rowwise or block");
  option("--fp8-select", request->fp8_select, "NAME",
         "Choice of the FP8 matmuls, as training.fp8.select: measure or always");
  option("--offload", request->offload, "NAME",
         "Place of optimizer states, as training.offload: none, host, stream or auto");
  command->add_flag("--offload-gradients", request->offload_gradients,
                    "Keep gradients in host memory, as training.offload_gradients");
  option("--accumulation", request->accumulation, "N",
         "Micro-batches of --clips clips in a step, as training.gradient_accumulation_steps")
      ->check(CLI::Range(std::int64_t{1}, kMostAccumulation));
  option("--steps", request->steps, "N", "Timed steps")->check(CLI::Range(std::int64_t{1}, kMostSteps));
  option("--total-clips", request->total_clips, "N", "Clips to train on, for the column of hours")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50));
  command->add_flag("--json", request->json, "Print JSON on stdout, nothing else");
  command->footer(speech_bench_footer());
  command->callback([=] { action(*request); });
}

void add_bench_transcribe(CLI::App& bench, const std::function<void(const TranscribeBenchRequest&)>& action) {
  CLI::App* command = bench.add_subcommand(
      "transcribe", "Time how fast the speech model transcribes, as a multiple of real time");
  auto request = std::make_shared<TranscribeBenchRequest>();
  const AddOption option{*command};
  option("--from", request->from, "LIST", "Sources of the clips: memory, wav, flac or mp3, comma-separated")
      ->delimiter(',')
      ->check(CLI::IsMember({"memory", "wav", "flac", "mp3"}));
  option("--batch-seconds", request->batch_seconds, "LIST", "Seconds of sound in a batch, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(0.1, 1e6));
  option("--clips", request->clips, "N", "Number of clips")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  option("--seconds", request->seconds, "S", "Length of a clip")->check(CLI::Range(0.1, 3600.0));
  option("--tokens-per-second", request->tokens_per_second, "N",
         "Approximate number of tokens that the model emits per second of sound")
      ->check(CLI::Range(0.0, 100.0));
  add_model(option, request->model);
  option("--dtype", request->dtype, "NAME", "Compute type; auto: bfloat16 on a GPU, float32 elsewhere")
      ->check(CLI::IsMember({"auto", "bfloat16", "float16", "float32"}));
  option("--device", request->device, "NAME", "Device: auto, cpu, cuda or cuda:1");
  option("--threads", request->threads, "N", "Threads that read files; 0: one for each CPU, up to 16")
      ->check(CLI::Range(0, 1024));
  command->add_flag("--json", request->json, "Print JSON on stdout, nothing else");
  command->footer(kTranscribeBenchFooter);
  command->callback([=] { action(*request); });
}

octavo_train::SpeechModelSettings settings_of(const BenchModel& model) {
  octavo_train::SpeechModelSettings out;  // the settings of v3
  if (const auto parakeet = octavo_train::known_speech_model("parakeet-tdt-0.6b-" + model.size)) {
    out = *parakeet;
  } else if (model.size == "tiny") {
    out.mel_bands = 16;
    out.subsampling_channels = 8;
    out.encoder_layers = 2;
    out.width = out.predictor_width = out.joint_width = 64;
    out.heads = 4;
    out.feed_forward = 256;
    out.vocabulary = 64;
  } else if (const auto layers = layers_and_width(model.size)) {
    out.encoder_layers = layers->first;
    out.width = layers->second;
    out.heads = out.width % 128 == 0 ? out.width / 128 : 4;
    out.feed_forward = 4 * out.width;
  } else {
    throw Failure(kExitUsage,
                  "--size: got '" + model.size +
                      "', expected v2, v3, tiny, or layers/width with a width that is a multiple of 8");
  }
  out.head = model.head == "ctc"    ? octavo_train::SpeechHead::ctc
             : model.head == "rnnt" ? octavo_train::SpeechHead::rnnt
                                    : octavo_train::SpeechHead::tdt;
  out.omega = 0;  // every step computes the same loss
  return out;
}

std::string model_text(const BenchModel& model, std::int64_t parameters) {
  return fmt::format("speech model {} ({}, {} parameters", model.size, model.head,
                     octavo_train::short_count(static_cast<double>(parameters)));
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<float> make_sound(std::uint64_t number, int rate, double seconds) {
  const std::uint64_t key = octavo_train::mix(number + octavo_train::kGoldenGamma);
  std::vector<float> samples(static_cast<std::size_t>(std::llround(seconds * rate)));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double t = static_cast<double>(i) / rate;
    double x = 0.02 * (octavo_train::share_of(key, i + 8) - 0.5);
    for (std::uint64_t tone = 1; tone <= 3; ++tone) {
      const double hertz = 150 * static_cast<double>(tone * tone) * (1 + octavo_train::share_of(key, tone));
      const double beat = 2 + 4 * octavo_train::share_of(key, tone + 3);
      const double loud = std::max(std::sin(2 * std::numbers::pi * beat * t), 0.0);
      x += 0.2 / static_cast<double>(tone) * loud * std::sin(2 * std::numbers::pi * hertz * t);
    }
    samples[i] = static_cast<float>(x);
  }
  return samples;
}

}  // namespace octavo::cli
