// speech_tensors MODEL eval|train IN OUT: writes the tensors that the model of a .nemo archive or a
// transformers folder computes for a batch, for tests/peers/nemo. IN and OUT are safetensors files.
//
// IN has `audio` (float32, [clips, samples], 16-bit samples / 32768), `audio_lengths`, `targets` and
// `target_lengths` (int64). OUT has the features and the encoder's frames with their lengths, the logits of
// all cells, the loss and, for `eval`, the greedy tokens (-1 after a clip's last token) and their frames.
// `train` is a training step without dither and SpecAugment: OUT has the gradients and BatchNorm's new
// statistics under NeMo's names. The program uses the trainer's functions for the batch, the features and
// their padding.
// SPDX-License-Identifier: MIT
#include "train/checkpoint/tensors.h"
#include "train/model/model.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/archive/weights.h"
#include "train/tasks/speech/data/batch.h"
#include "train/tasks/speech/features/featurizer.h"
#include "train/tasks/speech/model/speech_model.h"
#include "train/tasks/speech/recognition/greedy.h"

#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {
namespace {

// Errors are thrown as LibTorch errors, which carry the message to main().
template <class T>
T value_of(Result<T> result) {
  TORCH_CHECK(result.ok(), result.status().message());
  return std::move(*result);
}

torch::Tensor tensor_of(const Safetensors& file, const std::string& path, const std::string& name) {
  for (const auto& [each, tensor] : value_of(views_of(file, path))) {
    if (each == name) return tensor.clone();
  }
  TORCH_CHECK(false, path, " has no tensor ", name);
}

// Returns the clips in the form of the trainer's reader.
std::vector<LoadedClip> read_clips(const std::string& path) {
  const Safetensors file = value_of(Safetensors::open(path));
  const torch::Tensor audio = tensor_of(file, path, "audio"), targets = tensor_of(file, path, "targets");
  const torch::Tensor samples = tensor_of(file, path, "audio_lengths"),
                      labels = tensor_of(file, path, "target_lengths");
  std::vector<LoadedClip> out;
  for (std::int64_t i = 0; i < audio.size(0); ++i) {
    const std::int64_t count = samples[i].item<std::int64_t>(), said = labels[i].item<std::int64_t>();
    const auto* const sound = audio.const_data_ptr<float>() + i * audio.size(1);
    const auto* const tokens = targets.const_data_ptr<std::int64_t>() + i * targets.size(1);
    out.push_back({{sound, sound + count}, {tokens, tokens + said}, {}});
  }
  return out;
}

torch::Tensor tokens_of(const std::vector<Transcript>& transcripts, std::int64_t Emission::*field) {
  std::size_t most = 1;
  for (const Transcript& each : transcripts) most = std::max(most, each.size());
  torch::Tensor out =
      torch::full({std::ssize(transcripts), static_cast<std::int64_t>(most)}, -1, torch::kInt64);
  for (std::size_t i = 0; i < transcripts.size(); ++i) {
    for (std::size_t k = 0; k < transcripts[i].size(); ++k)
      out.data_ptr<std::int64_t>()[i * most + k] = transcripts[i][k].*field;
  }
  return out;
}

NamedTensors compute(const std::string& name, bool training, const std::string& in) {
  const SpeechArchive archive = value_of(SpeechArchive::open(name));
  SpeechModel model(archive.settings());
  const NamedTensors weights = tensors_of(*model);
  value_of(load_archive(archive, weights));
  model->train(training);
  const FeatureSettings& settings = archive.features();
  const Featurizer featurizer(settings, torch::kCPU, value_of(archive.feature_tables()));
  const Batch batch = make_batch(settings, read_clips(in));
  const torch::Tensor plain = featurizer(batch.at(ClipTensors::audio), audio_lengths(batch)).frames;
  SpeechClips clips = clips_of(batch, plain);
  if (training)
    clips.features = padded_for_training(plain, std::ranges::max(clips.feature_lengths_on_host), settings);

  const torch::AutoGradMode gradients(training);
  const Encoded encoded = model->encode(clips.features, clips.feature_lengths, {});
  const bool ctc = model->settings().head == SpeechHead::ctc;
  const torch::Tensor loss = model->loss(encoded, clips, {});
  NamedTensors out = {{"features", clips.features},
                      {"feature_lengths", clips.feature_lengths},
                      {"frames", encoded.frames.detach()},
                      {"frame_lengths", encoded.lengths},
                      {"loss", loss.detach().reshape({1})}};
  if (training) {
    const double dropout = archive.settings().joint_dropout;
    loss.backward();
    for (const auto& each : model->named_parameters()) {
      if (each.value().grad().defined())
        out.emplace_back("gradient." + nemo_name(each.key(), dropout).value(), each.value().grad());
    }
    for (const auto& each : model->named_buffers())
      out.emplace_back("buffer." + nemo_name(each.key(), dropout).value(), each.value().reshape({-1}));
    return out;
  }
  const torch::Tensor logits = ctc ? model->ctc_logits(encoded.frames)
                                   : model->joint(model->project_frames(encoded.frames).unsqueeze(2),
                                                  model->predictions(clips.targets, {}).unsqueeze(1));
  const std::vector<Transcript> transcripts =
      ctc ? decode_ctc(logits, encoded.lengths)
          : decode_greedy(*model, encoded.frames, encoded.lengths,
                          {.max_symbols = model->settings().max_symbols});
  out.emplace_back("logits", logits.contiguous());
  out.emplace_back("tokens", tokens_of(transcripts, &Emission::token));
  out.emplace_back("token_frames", tokens_of(transcripts, &Emission::frame));
  return out;
}

}  // namespace
}  // namespace octavo_train

int main(int argc, char** argv) {
  const std::string_view mode = argc == 5 ? argv[2] : "";
  if (mode != "eval" && mode != "train") {
    std::cerr << "usage: speech_tensors MODEL eval|train IN.safetensors OUT.safetensors\n";
    return 2;
  }
  try {
    octavo_train::NamedTensors out = octavo_train::compute(argv[1], mode == "train", argv[3]);
    for (auto& [name, tensor] : out) tensor = tensor.contiguous();
    const octavo::Status written = octavo_train::write_safetensors(argv[4], octavo_train::sources_of(out));
    if (!written.ok()) std::cerr << written.message() << '\n';
    return written.ok() ? 0 : 1;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  return 1;
}
