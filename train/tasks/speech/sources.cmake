# See train/tasks/CMakeLists.txt. octavo_train_speech has what needs no LibTorch: the clips, the masks.
set(plain_sources augment.cc generator.cc)
