# See train/tasks/CMakeLists.txt. octavo_train_speech has what needs no LibTorch: the clips, the masks, models in files of
# other programs, and the word error rate.
set(config_sources
  config.cc
  config/codecs.cc
  config/model_keys.cc
  config/recording_keys.cc)
set(plain_sources
  archive/archive.cc
  archive/foreign_config.cc
  archive/hub.cc
  archive/nemo_config.cc
  archive/run_model.cc
  archive/tensor_names.cc
  archive/transformers_config.cc
  archive/write.cc
  data/clip_reader.cc
  data/generator.cc
  data/skipped_clips.cc
  export.cc
  features/feature_cache.cc
  features/feature_tables.cc
  features/spec_augment.cc
  manifest/manifest.cc
  manifest/manifest_line.cc
  recognition/batch_recognition.cc
  recognition/score.cc
  recognition/transcription.cc
  recognition/windows.cc
  tokenizer/files.cc
  tokenizer/piece_model.cc
  tokenizer/tokenizer_json.cc)
octavo_find_nlohmann_json()
set(plain_libraries nlohmann_json::nlohmann_json octavo_train_audio octavo_train_base)
if(OCTAVO_WITH_AUDIO)
  list(APPEND plain_sources tokenizer/sentencepiece.cc)
  list(APPEND plain_libraries octavo_sentencepiece)
else()
  list(APPEND plain_sources tokenizer/no_sentencepiece.cc)
endif()
set(torch_sources
  task.cc
  archive/weights.cc
  data/batch.cc
  data/generated_clips.cc
  data/recordings.cc
  features/featurizer.cc
  model/encoder.cc
  model/predictor.cc
  model/speech_model.cc
  recognition/greedy.cc
  recognition/recognizer.cc)
set(torch_layers attention.cc convolution.cc mel.cc residual.cc subsampling.cc transducer.cc)
