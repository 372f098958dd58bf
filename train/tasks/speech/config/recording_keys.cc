// The config keys of recordings, of the tokenizer and of the features. See keys.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/config/codecs.h"
#include "train/tasks/speech/config/keys.h"

namespace octavo_train {
namespace {

using R = RecordingSettings;
using F = FeatureKeys;

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
      {"model.tokenizer.model", Setting{field(&TokenizerKeys::model, path()), "null"},
       "a SentencePiece model; null: the tokenizer in the files of model.name. If the number of tokens "
       "differs, decoder and joint start with random weights",
       Effect::content},
      {"model.tokenizer.dir", Setting{field(&TokenizerKeys::dir, path()), "null"},
       "a folder with tokenizer.model, instead of model.tokenizer.model", Effect::content},
      {"model.tokenizer.type",
       Setting{field(&TokenizerKeys::type, word({"bpe", "unigram", "char", "word"})), "null"},
       "no effect, because a SentencePiece model contains its type; accepted because NeMo's configs have it",
       Effect::none},
      {"model.preprocessor.sample_rate", Setting{field(&F::sample_rate, integer(1000, 192000)), "null"},
       "sample rate of the model's input, in Hz; recordings with other rates are resampled"},
      {"model.preprocessor.window_size", Setting{field(&F::window_size, seconds), "null"},
       "length of a window in seconds"},
      {"model.preprocessor.window_stride", Setting{field(&F::window_stride, seconds), "null"},
       "seconds between the starts of two windows"},
      {"model.preprocessor.window", Setting{field(&F::window, word({"hann"})), "null"},
       "shape of the windows"},
      {"model.preprocessor.n_fft", Setting{field(&F::n_fft, integer(16, 65536)), "null"},
       "samples in a Fourier transform"},
      {"model.preprocessor.features", Setting{field(&F::features, integer(1, 4096)), "null"},
       "mel bands: the same number as model.encoder.feat_in"},
      {"model.preprocessor.preemph", Setting{field(&F::preemph, real(kFraction)), "null"},
       "pre-emphasis coefficient; 0: no pre-emphasis"},
      {"model.preprocessor.dither", Setting{field(&F::dither, real(kNotNegative)), "null"},
       "standard deviation of the noise that is added to samples in training"},
      {"model.preprocessor.normalize", Setting{field(&F::normalize, word({"per_feature"})), "null"},
       "per_feature: each band of a clip is normalized to mean 0 and standard deviation 1"},
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
       "recordings to train on: JSON lines in NeMo's format, with audio_filepath, duration and text. The "
       "clips of a manifest with weight 2 are used twice per epoch",
       Effect::content},
      {"data.val_manifest",
       Setting{field(&R::val_manifest, manifest_list()), "null", {"validation_manifest"}},
       "recordings to evaluate on", Effect::content},
      {"data.text_field", Setting{field(&R::text_field, text("the name of a field")), "text"},
       "the field of a manifest that contains the transcript"},
      {"data.lang_field", Setting{field(&R::lang_field, text("the name of a field")), "lang"},
       "the field of a manifest that contains the language", Effect::none},
      {"data.sample_rate", Setting{field(&R::sample_rate, integer(1000, 192000)), "null"},
       "sample rate of the model's input, as model.preprocessor.sample_rate; recordings with other rates are "
       "resampled",
       Effect::none},
      {"data.min_duration", Setting{field(&R::min_duration, seconds), "0.1"},
       "seconds; shorter clips are skipped"},
      {"data.max_duration",
       Setting{field(&R::max_duration, real({.low = 0, .high = 3600, .above = true})), "20"},
       "seconds; longer clips are skipped"},
      {"data.on_bad_clip",
       Setting{.type = field(&R::on_bad_clip,
                             choice<BadClips>({{BadClips::error, "error"}, {BadClips::skip, "skip"}})),
               .fallback = "error",
               .formerly = "bad_clips"},
       "what to do with a clip that cannot be read, is silent, has no transcript or one that the tokenizer "
       "cannot encode, is shorter than its manifest says, or exceeds the limits of a batch: error: the run "
       "ends; skip: the run continues without the clip and lists it in skipped.jsonl of its folder"},
      {"data.batch_seconds",
       Setting{field(&R::batch_seconds, real({.low = 0, .high = 1e7, .above = true})),
               "null",
               {"batch_duration"}},
       "limit of the seconds of audio in a batch, padding included; per_device_train_batch_size also limits "
       "the batch if it is given"},
      {"data.batch_lattice_cells",
       Setting{.type = field(&R::batch_lattice_cells, integer(1, kMaxSteps)),
               .fallback = "null",
               .formerly = "batch_cells"},
       "limit of the lattice cells of the loss in a batch; a clip has encoder frames x (tokens + 1) cells"},
      {"data.bucket_buffer_size", Setting{field(&R::bucket_buffer_size, integer(1, kMaxSize)), "10000"},
       "number of drawn clips among which clips of similar length are batched together"},
      {"data.speed_perturb", Setting{field(&R::speed_perturb, speed_list()), "[]"},
       "playback speeds, one of which is chosen each time a clip is drawn"},
      {"data.noise_manifest", Setting{field(&R::noise_manifest, manifest_list()), "null"},
       "recordings of noise that are added to clips: a manifest without transcripts"},
      {"data.noise_snr", Setting{field(&R::noise_snr, snr_range()), "[10, 20]"},
       "signal-to-noise ratio of the added noise, in decibels"},
      {"data.noise_prob", Setting{field(&R::noise_prob, real({.low = 0, .high = 1})), "0.5"},
       "fraction of draws to which noise is added"},
      {"data.cache_features", Setting{field(&R::cache_features, new_path()), "null"},
       "a folder in which features are cached for later epochs and runs", Effect::none},
      {"data.test_manifest", Refused{kNoTest}, ""},
  };
}

Status check_recordings(const Config& config) {
  const auto& data = config.settings.task_settings.get<RecordingSettings>();
  const auto& features = config.settings.task_settings.get<FeatureKeys>();
  const auto& tokenizer = config.settings.task_settings.get<TokenizerKeys>();
  if (data.min_duration > data.max_duration)
    return clash_error(config, "data.min_duration", "data.max_duration", "make min_duration the smaller one");
  if (config.settings.training.per_device_train_batch_size == kNoLimit && !data.has_budget()) {
    return clash_error(config, "training.per_device_train_batch_size", "data.batch_seconds",
                       "auto needs another limit: give batch_seconds or batch_lattice_cells");
  }
  if (config.settings.training.global_batch_size && data.has_budget()) {
    return clash_error(config, "training.global_batch_size",
                       data.batch_seconds ? "data.batch_seconds" : "data.batch_lattice_cells",
                       "with a limit of seconds or lattice cells, batches have different numbers of samples: "
                       "keep one, and give gradient_accumulation_steps with such a limit");
  }
  if (data.sample_rate && features.sample_rate && *data.sample_rate != *features.sample_rate) {
    return clash_error(config, "data.sample_rate", "model.preprocessor.sample_rate",
                       "both set the sample rate of the model's input: keep one");
  }
  if (tokenizer.model && tokenizer.dir)
    return clash_error(config, "model.tokenizer.dir", "model.tokenizer.model", "keep one");
  if (data.cache_features && (!data.speed_perturb.empty() || data.noise_manifest)) {
    return clash_error(config, "data.cache_features",
                       data.speed_perturb.empty() ? "data.noise_manifest" : "data.speed_perturb",
                       "cached features are the same in every epoch: use one of them");
  }
  return {};
}

}  // namespace octavo_train
