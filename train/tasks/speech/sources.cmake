# See train/tasks/CMakeLists.txt. octavo_train_speech has what needs no LibTorch: the clips, the masks, models in files of
# other programs, and the word error rate.
set(config_sources
  codecs.cc config.cc model_config.cc recipe.cc recording_codecs.cc recording_config.cc)
set(plain_sources
  archive.cc archive_export.cc archive_features.cc archive_keys.cc archive_nemo.cc archive_tokenizer.cc archive_transformers.cc
  archive_write.cc charsmap.cc export.cc hub.cc json_line.cc
  bundled_model.cc manifest.cc manifest_line.cc manifest_open.cc manifest_order.cc names.cc nemo_config.cc
  pretrained_source.cc piece_model.cc tokenizer_export.cc tokenizer_files.cc tokenizer_json.cc
  data/clip_reader.cc
  data/generator.cc
  data/skipped_clips.cc
  features/feature_cache.cc
  features/feature_tables.cc
  features/spec_augment.cc
  recognition/batch_recognition.cc
  recognition/score.cc
  recognition/transcript_file.cc
  recognition/transcription.cc
  recognition/windows.cc)
octavo_find_nlohmann_json()
set(plain_libraries nlohmann_json::nlohmann_json octavo_train_audio octavo_train_base)
if(OCTAVO_WITH_AUDIO)
  list(APPEND plain_sources tokenizer.cc)
  list(APPEND plain_libraries octavo_sentencepiece)
else()
  list(APPEND plain_sources tokenizer_none.cc)
endif()
set(torch_sources
  task.cc
  weights.cc
  data/batch.cc
  data/generated_clips.cc
  data/recordings.cc
  data/recordings_about.cc
  features/featurizer.cc
  model/encoder.cc
  model/step_profile.cc
  model/predictor.cc
  model/speech_model.cc
  recognition/greedy.cc
  recognition/recognizer.cc)
