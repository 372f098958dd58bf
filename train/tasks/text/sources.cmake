# See train/tasks/CMakeLists.txt. octavo_train_text has the text itself: files, windows.
set(config_sources config.cc)
set(plain_sources find_text_files.cc sampler.cc text.cc text_record.cc)
octavo_find_nlohmann_json()
set(plain_libraries nlohmann_json::nlohmann_json octavo_train_base)
set(torch_sources bdh.cc evaluate.cc task.cc text_model.cc)
