// Defines the command lines of `octavo bench speech` and `octavo bench transcribe`; see trainer_commands.h.
// SPDX-License-Identifier: MIT
#include "apps/octavo/common/cli.h"
#include "apps/octavo/common/options.h"
#include "apps/octavo/trainer_commands.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace octavo::cli {
namespace {

constexpr std::int64_t kMostClips = 4096, kMostTokens = 100000, kMostSteps = 100000, kMostAccumulation = 4096;

std::string speech_bench_footer() {
  using namespace octavo_train::recipe;
  return "For example:\n"
         "  octavo bench speech                  where a step of Parakeet TDT 0.6B v3 goes\n"
         "  octavo bench speech --checkpointing off,on --optimizer " +
         joined(std::vector{kWithFp32, kOptimizer, kWith4bit}, ",") + R"(
  octavo bench speech --fp8 delayed    which products gain in FP8, and what the step does
  octavo bench speech --size tiny --clips 2 --seconds 2 --tokens 5 --device cpu

Weights, recordings and labels are random. Three steps warm up and one is measured for its memory; then the
steps that are timed. Parts are timed by events on a GPU, so nothing waits for it; "rest" is what they lack
of a step. Memory by owner: "activations" is what the forward pass has kept when the loss begins, "loss" the
most that joint and loss need beyond that and beyond gradients. Not all of them live at the moment of the
peak.)";
}

constexpr const char* kTranscribeBenchFooter = R"(For example:
  octavo bench transcribe                                  Parakeet TDT 0.6B v3, clips in memory
  octavo bench transcribe --from memory,flac,mp3 --batch-seconds 320,1200,4800
  octavo bench transcribe --size tiny --clips 8 --seconds 2 --device cpu

Weights are random. The bias of blank is set so that about --tokens-per-second come out, as of speech: with
random weights alone it would be none, or ten a frame. The table says how many there were. A row's time goes
from the first file to the last text, with one batch before it to warm up. Files are 32 different ones, read
again and again: WAV and FLAC at 16 kHz, MP3 at 44.1 kHz.)";

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
         "off, on, encoder or decoder, comma-separated: whose activations are computed again in the backward "
         "pass")
      ->delimiter(',')
      ->check(CLI::IsMember({"off", "on", "encoder", "decoder"}));
  option("--optimizer", request->optimizers, "LIST",
         "Optimizers as training.optimizer has them, comma-separated")
      ->delimiter(',');
  option("--size", request->size, "NAME", "Model: v2, v3, tiny, or the layers/width of its encoder: 12/512");
  option("--head", request->head, "NAME", "Head of the model")->check(CLI::IsMember({"tdt", "rnnt", "ctc"}));
  option("--dtype", request->dtype, "NAME",
         "Compute type, as training.compute_dtype: bfloat16, float16 or float32");
  option("--master", request->master, "NAME",
         "Master weights, as training.master_weights: auto, 24, 32, stochastic or none");
  option("--device", request->device, "NAME", "Device: auto, cpu, cuda or cuda:1");
  option("--fp8", request->fp8, "NAME",
         "FP8 matmuls: off, or a recipe as training.fp8.recipe has it: delayed, current, rowwise or block");
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
  option("--clips", request->clips, "N", "Clips in all")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  option("--seconds", request->seconds, "S", "Length of a clip")->check(CLI::Range(0.1, 3600.0));
  option("--tokens-per-second", request->tokens_per_second, "N",
         "Tokens that the model gives for a second of sound, about")
      ->check(CLI::Range(0.0, 100.0));
  option("--size", request->size, "NAME", "Model: v2, v3, tiny, or the layers/width of its encoder: 12/512");
  option("--head", request->head, "NAME", "Head of the model")->check(CLI::IsMember({"tdt", "rnnt", "ctc"}));
  option("--dtype", request->dtype, "NAME", "Compute type; auto: bfloat16 on a GPU, float32 elsewhere")
      ->check(CLI::IsMember({"auto", "bfloat16", "float16", "float32"}));
  option("--device", request->device, "NAME", "Device: auto, cpu, cuda or cuda:1");
  option("--threads", request->threads, "N", "Threads that read files; 0: one for each CPU, up to 16")
      ->check(CLI::Range(0, 1024));
  command->add_flag("--json", request->json, "Print JSON on stdout, nothing else");
  command->footer(kTranscribeBenchFooter);
  command->callback([=] { action(*request); });
}

}  // namespace octavo::cli
