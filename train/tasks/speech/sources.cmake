# See train/tasks/CMakeLists.txt. octavo_train_speech has what needs no LibTorch: the clips, the masks, models in files of
# other programs, and the word error rate.
set(config_sources codecs.cc config.cc model_config.cc)
set(plain_sources
  archive.cc archive_keys.cc archive_nemo.cc archive_transformers.cc archive_write.cc augment.cc export.cc generator.cc hub.cc names.cc
  origin.cc wer.cc)
set(torch_sources
  batch.cc encoder.cc greedy.cc measure.cc model.cc predictor.cc step_parts.cc subsampling.cc task.cc weights.cc)
