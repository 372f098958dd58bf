# See train/tasks/CMakeLists.txt. octavo_train_speech has what needs no LibTorch: the clips, the masks, and models in
# files of other programs.
set(plain_sources
  archive.cc archive_keys.cc archive_nemo.cc archive_transformers.cc archive_write.cc augment.cc generator.cc hub.cc names.cc)
