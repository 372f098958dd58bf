// Implements `octavo bench speech`: measures one row for each requested combination.
// SPDX-License-Identifier: MIT
#include "apps/octavo/common/cli.h"
#include "apps/octavo/common/progress.h"
#include "apps/octavo/speech_report.h"
#include "apps/octavo/trainer.h"
#include "train/config/config.h"
#include "train/device/device.h"
#include "train/device/memory.h"
#include "train/model/model.h"
#include "train/optim/fp8.h"
#include "train/optim/optimizer.h"
#include "train/tasks/speech/config/keys.h"
#include "train/tasks/speech/data/generator.h"
#include "train/tasks/speech/model/speech_model.h"
#include "train/tasks/speech/model/step_profile.h"

#include <torch/torch.h>

#include <charconv>
#include <cmath>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

namespace octavo::cli {
namespace {

using octavo_train::SpeechModelSettings;

// Parses "12/512".
std::optional<std::pair<std::int64_t, std::int64_t>> layers_and_width(const std::string& size) {
  std::int64_t layers = 0, width = 0;
  const char* const end = size.data() + size.size();
  const auto first = std::from_chars(size.data(), end, layers);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '/') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, width);
  if (second.ec != std::errc() || second.ptr != end || layers < 1 || width < 8 || width % 8 != 0)
    return std::nullopt;
  return std::pair{layers, width};
}

octavo_train::TrainingSettings training_of(const SpeechBenchRequest& request, const std::string& optimizer) {
  const bool fp8 = request.fp8 != "off";
  const std::string words[] = {
      std::string("training.fp8.enabled=") + (fp8 ? "true" : "false"),
      "training.fp8.recipe=" + (fp8 ? request.fp8 : "delayed"),
      "training.fp8.select=" + request.fp8_select,
      "training.optimizer=" + optimizer,
      "training.compute_dtype=" + request.dtype,
      "training.master_weights=" + request.master,
      "training.device=" + request.device,
      "training.learning_rate=1e-4",
      "training.gradient_accumulation_steps=" + std::to_string(request.accumulation),
      "training.offload=" + request.offload,
      std::string("training.offload_gradients=") + (request.offload_gradients ? "true" : "false")};
  return take(octavo_train::parse("", "the command line", words)).settings.training;
}

// Keeps the model of the last row and reuses it if the next row allows it, because initializing the weights
// takes seconds.
class Models {
 public:
  explicit Models(const SpeechBenchRequest& request) : settings_(bench_model(request.size, request.head)) {}

  octavo_train::SpeechModelImpl& get(const std::string& checkpointing, const ::torch::Device& device,
                                     bool bf16) {
    if (model_.is_empty() || checkpointing != checkpointing_ || bf16 != bf16_) {
      drop();
      settings_.checkpoint_encoder = checkpointing == "on" || checkpointing == "encoder";
      settings_.checkpoint_decoder = checkpointing == "on" || checkpointing == "decoder";
      octavo_train::SpeechModel model(settings_);
      octavo_train::place_model(*model, device, bf16);
      model_ = model;
      checkpointing_ = checkpointing;
      bf16_ = bf16;
    }
    return *model_;
  }
  void drop() { model_ = octavo_train::SpeechModel(nullptr); }

 private:
  SpeechModelSettings settings_;
  octavo_train::SpeechModel model_{nullptr};
  std::string checkpointing_;
  bool bf16_ = false;
};

void measure_row(SpeechBench& bench, SpeechBenchRow& row, const ::torch::Device& device, Models& models) {
  const SpeechBenchRequest& request = bench.request;
  const octavo_train::TrainingSettings training = training_of(request, row.optimizer);
  check(octavo_train::check_backend(device));
  const bool bf16 = octavo_train::has_bf16_weights(training);
  const octavo_train::SpeechLoad load{row.clips,
                                      std::llround(octavo_train::kFramesPerSecond * request.seconds),
                                      request.tokens, request.steps};
  try {
    octavo_train::seed_random(training.seed, 0, 0);
    octavo_train::SpeechModelImpl& model = models.get(row.checkpointing, device, bf16);
    bench.parameters = 0;
    for (const ::torch::Tensor& each : model.parameters()) bench.parameters += each.numel();
    bench.weights = "float32";
    if (bf16)
      bench.weights =
          std::string("bfloat16, master ") + octavo_train::master_name(octavo_train::weight_store(training));
    take(octavo_train::choose_fp8(training.fp8, device));  // an error if FP8 is not supported
    row.measure = octavo_train::measure_step(model, load, training, device);
    model.zero_grad();
  } catch (const c10::OutOfMemoryError&) {
    row.error = "out of memory";
    models.drop();
  }
  octavo_train::release_cached_memory(device);
}

}  // namespace

octavo_train::SpeechModelSettings bench_model(const std::string& size, const std::string& head) {
  octavo_train::SpeechModelSettings out;  // the settings of v3
  if (const auto parakeet = octavo_train::known_speech_model("parakeet-tdt-0.6b-" + size)) {
    out = *parakeet;
  } else if (size == "tiny") {
    out.mel_bands = 16;
    out.subsampling_channels = 8;
    out.encoder_layers = 2;
    out.width = out.predictor_width = out.joint_width = 64;
    out.heads = 4;
    out.feed_forward = 256;
    out.vocabulary = 64;
  } else if (const auto layers = layers_and_width(size)) {
    out.encoder_layers = layers->first;
    out.width = layers->second;
    out.heads = out.width % 128 == 0 ? out.width / 128 : 4;
    out.feed_forward = 4 * out.width;
  } else {
    throw Failure(kExitUsage,
                  "--size: got '" + size +
                      "', expected v2, v3, tiny, or layers/width with a width that is a multiple of 8");
  }
  out.head = head == "ctc"    ? octavo_train::SpeechHead::ctc
             : head == "rnnt" ? octavo_train::SpeechHead::rnnt
                              : octavo_train::SpeechHead::tdt;
  out.omega = 0;  // every step computes the same loss
  return out;
}

void run_bench_speech(const SpeechBenchRequest& request) {
  const ::torch::Device device =
      take(octavo_train::choose_device(training_of(request, request.optimizers.front()).device), "--device");
  // Checks all optimizers before any work.
  for (const std::string& optimizer : request.optimizers) training_of(request, optimizer);
  Models models(request);
  SpeechBench bench{request, octavo_train::device_text(device), 0, "", {}};
  {
    Progress progress;
    for (const std::string& checkpointing : request.checkpointing) {
      for (const std::string& optimizer : request.optimizers) {
        for (const std::int64_t clips : request.clips) {
          progress.say(optimizer + ", checkpointing " + checkpointing + ", " + std::to_string(clips) +
                       " clips");
          SpeechBenchRow& row =
              bench.rows.emplace_back(SpeechBenchRow{optimizer, checkpointing, clips, std::nullopt, ""});
          measure_row(bench, row, device, models);
        }
      }
    }
  }
  std::cout << (request.json ? speech_json(bench) : speech_tables(bench));
}

}  // namespace octavo::cli
