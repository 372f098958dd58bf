# See train/tasks/CMakeLists.txt. octavo_train_text has the text itself: files, windows.
set(config_sources config.cc)
set(plain_sources text.cc text_files.cc)
octavo_find_nlohmann_json()
set(plain_libraries nlohmann_json::nlohmann_json octavo_train_base)
set(torch_sources bdh.cc evaluate.cc task.cc)
