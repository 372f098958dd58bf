# See train/tasks/CMakeLists.txt. octavo_train_speech has what needs no LibTorch: the clips, the masks, models in files of
# other programs, and the word error rate.
set(config_sources
  codecs.cc config.cc model_config.cc recipe.cc recording_codecs.cc recording_config.cc)
set(plain_sources
  archive.cc archive_export.cc archive_features.cc archive_keys.cc archive_nemo.cc archive_tokenizer.cc archive_transformers.cc
  archive_write.cc augment.cc charsmap.cc clip_reader.cc export.cc feature_cache.cc feature_tables.cc generator.cc transcription.cc hub.cc json_line.cc
  bundled_model.cc recognizer_files.cc batch_recognition.cc manifest.cc manifest_line.cc manifest_open.cc manifest_order.cc names.cc nemo_config.cc
  pretrained_source.cc piece_model.cc score.cc skipped_clips.cc tokenizer_export.cc tokenizer_files.cc tokenizer_json.cc transcribe.cc
  transcript_file.cc wer.cc windows.cc)
octavo_find_nlohmann_json()
set(plain_libraries nlohmann_json::nlohmann_json octavo_train_audio octavo_train_base)
if(OCTAVO_WITH_AUDIO)
  list(APPEND plain_sources tokenizer.cc)
  list(APPEND plain_libraries octavo_sentencepiece)
else()
  list(APPEND plain_sources tokenizer_none.cc)
endif()
set(torch_sources
  batch.cc encoder.cc features.cc generated_clips.cc greedy.cc recognizer.cc measure.cc model.cc predictor.cc recordings.cc
  recordings_about.cc step_parts.cc subsampling.cc task.cc weights.cc)
