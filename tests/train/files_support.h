// Folders, tensors and child processes for the tests of train/formats.
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

namespace octavo::train {

// A new folder, removed with what is in it.
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

// Plainly, without the code under test.
std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, std::string_view bytes);
std::vector<std::string> names_in(const std::string& folder);  // sorted

// A tensor whose bytes are given by its seed.
std::string tensor_data(std::size_t bytes, std::uint64_t seed);
TensorSource make_tensor(std::string name, std::string dtype, std::vector<std::int64_t> shape,
                         std::uint64_t seed = 1);
std::string text_of(Bytes bytes);

// A checkpoint as the trainer writes it, small: two files of tensors and state.json. `seed` tells two of the
// same step apart. The checkpoint's own account of its seed is read back by checkpoint_seed().
Status save_checkpoint(const std::string& run_folder, std::int64_t step, std::uint64_t seed = 1,
                       std::size_t bytes = 600);
std::string checkpoint_seed(const std::string& path);

// Runs in a child process, so that limits, mounts and users can be changed; what it returns comes back.
std::string in_child(const std::function<std::string()>& work);

// Runs in a child process that dies (SIGKILL) just before its system call number `calls`. Whether it died:
// false when it had finished by then. Nothing where processes cannot be traced.
std::optional<bool> killed_at_call(int calls, const std::function<void()>& work);

}  // namespace octavo::train
