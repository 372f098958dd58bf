// The config keys of recordings, of the tokenizer and of the features. See keys.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/config/codecs.h"
#include "train/tasks/speech/config/keys.h"

namespace octavo_train {
namespace {

using R = RecordingSettings;
using F = FeatureKeys;
using T = TokenizerKeys;

constexpr std::string_view kNoSection =
    "NeMo's data sets are keys of data: data.train_manifest and data.val_manifest (manifest_filepath), "
    "data.min_duration, data.max_duration, data.batch_seconds (batch_duration), data.bucket_buffer_size, "
    "data.dataloader_num_workers (num_workers); batch_size is training.per_device_train_batch_size";
constexpr std::string_view kNoTest =
    "a run does not read test sets; after it: octavo evaluate RUN test.jsonl";

}  // namespace

std::vector<Key> speech_input_keys() {
  const auto seconds = real({.low = 0.001, .high = 1});
  return {
      {"model.tokenizer.model", Setting{field(&T::model, path()), "null"},
       "a SentencePiece model; null: that of the files of model.name. With another number of tokens, decoder "
       "and joint begin with random weights",
       Effect::content},
      {"model.tokenizer.dir", Setting{field(&T::dir, path()), "null"},
       "a folder with tokenizer.model, instead of model.tokenizer.model", Effect::content},
      {"model.tokenizer.type", Setting{field(&T::type, word({"bpe", "unigram", "char", "word"})), "null"},
       "NeMo's word for what a SentencePiece model says itself: it changes nothing", Effect::none},
      {"model.preprocessor.sample_rate", Setting{field(&F::sample_rate, integer(1000, 192000)), "null"},
       "samples per second that the model hears; recordings of other rates are resampled"},
      {"model.preprocessor.window_size", Setting{field(&F::window_size, seconds), "null"},
       "seconds of a window"},
      {"model.preprocessor.window_stride", Setting{field(&F::window_stride, seconds), "null"},
       "seconds from one window to the next"},
      {"model.preprocessor.window", Setting{field(&F::window, word({"hann"})), "null"}, "its shape"},
      {"model.preprocessor.n_fft", Setting{field(&F::n_fft, integer(16, 65536)), "null"},
       "samples of a Fourier transform"},
      {"model.preprocessor.features", Setting{field(&F::features, integer(1, 4096)), "null"},
       "mel bands: as many as model.encoder.feat_in"},
      {"model.preprocessor.preemph", Setting{field(&F::preemph, real(kFraction)), "null"},
       "pre-emphasis; 0: none"},
      {"model.preprocessor.dither", Setting{field(&F::dither, real(kNotNegative)), "null"},
       "deviation of the noise that training adds to samples"},
      {"model.preprocessor.normalize", Setting{field(&F::normalize, word({"per_feature"})), "null"},
       "mean 0 and deviation 1 of each band over a clip"},
      {"model.train_ds", Refused{kNoSection}, ""},
      {"model.validation_ds", Refused{kNoSection}, ""},
      {"model.test_ds", Refused{kNoTest}, ""},
  };
}

std::vector<Key> recording_keys() {
  const auto seconds = real({.low = 0, .high = 3600});
  return {
      {"data.train_manifest",
       Setting{field(&R::train_manifest, manifest_list()), "null", {"manifest_filepath"}},
       "recordings to train on: JSON lines as NeMo has them, with audio_filepath, duration and text. A "
       "manifest of weight 2 comes twice in an epoch",
       Effect::content},
      {"data.val_manifest",
       Setting{field(&R::val_manifest, manifest_list()), "null", {"validation_manifest"}},
       "recordings to evaluate on", Effect::content},
      {"data.text_field", Setting{field(&R::text_field, text("the name of a field")), "text"},
       "the field of a manifest with what is said"},
      {"data.lang_field", Setting{field(&R::lang_field, text("the name of a field")), "lang"},
       "the field of a manifest with the language", Effect::none},
      {"data.sample_rate", Setting{field(&R::sample_rate, integer(1000, 192000)), "null"},
       "the same as model.preprocessor.sample_rate; files may have any rate", Effect::none},
      {"data.min_duration", Setting{field(&R::min_duration, seconds), "0.1"},
       "seconds; shorter clips are left out"},
      {"data.max_duration",
       Setting{field(&R::max_duration, real({.low = 0, .high = 3600, .above = true})), "20"},
       "seconds; longer clips are left out"},
      {"data.bad_clips",
       Setting{field(&R::bad_clips, choice<BadClips>({{BadClips::error, "error"}, {BadClips::skip, "skip"}})),
               "error"},
       "a clip that cannot be read, is silent, has no text or one that the tokenizer cannot write, is "
       "shorter than its manifest says or larger than a batch: the run ends, or goes on without it and lists "
       "it in skipped.jsonl of its folder"},
      {"data.batch_seconds",
       Setting{field(&R::batch_seconds, real({.low = 0, .high = 1e7, .above = true})),
               "null",
               {"batch_duration"}},
       "seconds of a batch, padding included: as many clips as fit, up to per_device_train_batch_size where "
       "that is given"},
      {"data.batch_cells", Setting{field(&R::batch_cells, integer(1, kMaxSteps)), "null"},
       "cells of the loss in a batch: for each clip, encoder frames times tokens and one"},
      {"data.bucket_buffer_size", Setting{field(&R::bucket_buffer_size, integer(1, kMaxSize)), "10000"},
       "draws among which clips of similar length are put together"},
      {"data.speed_perturb", Setting{field(&R::speed_perturb, speed_list()), "[]"},
       "each time it is drawn, a clip is played at one of these speeds"},
      {"data.noise_manifest", Setting{field(&R::noise_manifest, manifest_list()), "null"},
       "recordings of noise that are added to clips: a manifest without texts"},
      {"data.noise_snr", Setting{field(&R::noise_snr, snr_range()), "[10, 20]"},
       "how much louder than the noise a clip is, in decibels"},
      {"data.noise_prob", Setting{field(&R::noise_prob, real({.low = 0, .high = 1})), "0.5"},
       "share of draws that get noise"},
      {"data.cache_features", Setting{field(&R::cache_features, new_path()), "null"},
       "a folder that keeps features between epochs and runs", Effect::none},
      {"data.test_manifest", Refused{kNoTest}, ""},
  };
}

Status check_recordings(const Config& config) {
  const auto& data = config.settings.task_settings.get<RecordingSettings>();
  const auto& features = config.settings.task_settings.get<FeatureKeys>();
  const auto& tokenizer = config.settings.task_settings.get<TokenizerKeys>();
  if (data.min_duration > data.max_duration)
    return clash_error(config, "data.min_duration", "data.max_duration", "make it the smaller one");
  if (config.settings.training.per_device_train_batch_size == kNoLimit && !data.has_budget()) {
    return clash_error(config, "training.per_device_train_batch_size", "data.batch_seconds",
                       "auto needs another limit: give batch_seconds or batch_cells");
  }
  if (config.settings.training.global_batch_size && data.has_budget()) {
    return clash_error(config, "training.global_batch_size",
                       data.batch_seconds ? "data.batch_seconds" : "data.batch_cells",
                       "batches of a budget differ in their samples: keep one, and give "
                       "gradient_accumulation_steps with a budget");
  }
  if (data.sample_rate && features.sample_rate && *data.sample_rate != *features.sample_rate) {
    return clash_error(config, "data.sample_rate", "model.preprocessor.sample_rate",
                       "recordings are resampled to what the model hears: keep one");
  }
  if (tokenizer.model && tokenizer.dir)
    return clash_error(config, "model.tokenizer.dir", "model.tokenizer.model", "keep one");
  if (data.cache_features && (!data.speed_perturb.empty() || data.noise_manifest)) {
    return clash_error(config, "data.cache_features",
                       data.speed_perturb.empty() ? "data.noise_manifest" : "data.speed_perturb",
                       "features that are kept are the same in every epoch: use one of them");
  }
  return {};
}

}  // namespace octavo_train
