// SPDX-License-Identifier: MIT
#include "apps/octavo/bench_transcribe.h"

#include "apps/octavo/common/cli.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace octavo::cli {
namespace {

constexpr const char* kFooter = R"(For example:
  octavo bench transcribe                                  Parakeet TDT 0.6B v3, clips in memory
  octavo bench transcribe --from memory,flac,mp3 --batch-seconds 320,1200,4800
  octavo bench transcribe --size tiny --clips 8 --seconds 2 --device cpu

Weights are random. The bias of blank is set so that about --tokens-per-second come out, as of speech: with
random weights alone it would be none, or ten a frame. The table says how many there were. A row's time goes
from the first file to the last text, with one batch before it to warm up. Files are 32 different ones, read
again and again: WAV and FLAC at 16 kHz, MP3 at 44.1 kHz.)";

}  // namespace

void add_bench_transcribe(CLI::App& bench, const std::function<void(const TranscribeBenchRequest&)>& action) {
  CLI::App* command = bench.add_subcommand(
      "transcribe", "Time how fast the speech model transcribes, as a multiple of real time");
  auto request = std::make_shared<TranscribeBenchRequest>();
  const auto option = [&](const char* flag, auto& value, const char* type, const char* help) {
    return command->add_option(flag, value, help)->type_name(type)->capture_default_str();
  };
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
  command->footer(kFooter);
  command->callback([=] { action(*request); });
}

}  // namespace octavo::cli
