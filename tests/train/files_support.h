// Helpers for the tests of train/formats: folders, tensors and child processes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/folder/checkpoint_writer.h"
#include "train/formats/safetensors.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// A new folder that is removed with its contents.
class TempFolder {
 public:
  TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string at(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

// Read and write files without the code under test.
std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, std::string_view bytes);
std::vector<std::string> names_in(const std::string& folder);  // sorted

// Returns bytes that depend on the seed.
std::string tensor_data(std::size_t bytes, std::uint64_t seed);
TensorSource make_tensor(std::string name, std::string dtype, std::vector<std::int64_t> shape,
                         std::uint64_t seed = 1);
std::string text_of(Bytes bytes);

// Saves a small checkpoint as the trainer writes it: two tensor files and state.json. `seed` distinguishes
// two checkpoints of the same step; checkpoint_seed() reads it back.
Status save_checkpoint(const std::string& run_folder, std::int64_t step, std::uint64_t seed = 1,
                       std::size_t bytes = 600);
std::string checkpoint_seed(const std::string& path);

// Runs `work` in a child process, so that it can change limits, mounts and users. Returns its result.
std::string in_child(const std::function<std::string()>& work);

// Runs `work` in a child process that is killed (SIGKILL) just before its system call number `calls`. Returns
// true if it was killed, false if it had finished before, and nothing if processes cannot be traced.
std::optional<bool> killed_at_call(int calls, const std::function<void()>& work);

}  // namespace octavo_train
