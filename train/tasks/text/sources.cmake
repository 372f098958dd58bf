# See train/tasks/CMakeLists.txt. octavo_train_text has the text itself: files, windows.
set(config_sources bdh_config.cc config.cc)
set(plain_sources find_text_files.cc sampler.cc text.cc text_record.cc text_windows.cc)
set(torch_sources bdh.cc evaluate.cc task.cc text_model.cc)
set(quick_sources record_json.cc)
