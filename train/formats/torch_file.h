// Reads and writes files of torch.save: a zip archive with a pickle that describes a state dict, and one
// entry for each storage. Python's torch.load(weights_only=True) reads the files written here. Reading
// executes no code (pickle.h). A file is untrusted until it has been checked: before a range that it states
// is known to be inside the file, nothing is allocated for it and none of its bytes are accessed.
//
//   auto file = octavo_train::TorchFile::open("model_weights.ckpt");
//   if (file.ok()) use(file->find("encoder.weight")->bytes);
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/safetensors.h"
#include "train/formats/tensor_list.h"
#include "train/io/output_file.h"

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

class TorchFile {
 public:
  static Result<TorchFile> open(const std::string& path);
  // Reads a file from memory, which must outlive the returned object. Errors begin with an entry or a byte
  // offset.
  static Result<TorchFile> read(Bytes file);

  // Returns the tensors in the order of the dict. Their bytes are contiguous, whatever the strides were.
  // Tensors that share a storage may share bytes. The bytes are part of the file, unless the tensor had to be
  // copied.
  [[nodiscard]] std::span<const StoredTensor> tensors() const { return tensors_.all(); }
  [[nodiscard]] const StoredTensor* find(std::string_view name) const { return tensors_.find(name); }

 private:
  TorchFile() = default;

  MappedFile file_;
  std::deque<std::vector<std::byte>> copies_;  // copies of tensors whose strides have gaps or another order
  TensorList tensors_;
};

// The layout of a file that will be written.
struct TorchFileLayout {
  std::string pickle;
  std::string root;        // the folder of all entries
  std::uint64_t size = 0;  // bytes of the file
};

// Computes the layout of a file. Dtypes without a storage class in torch (unsigned types wider than 8 bits,
// F8) are errors. `root` is the folder of all entries: torch uses the file's name without its extension.
Result<TorchFileLayout> plan_torch_file(std::span<const TensorSource> sources, std::string root = "archive");
Status write_planned(const ByteSink& sink, const TorchFileLayout& plan,
                     std::span<const TensorSource> sources);

Status write_torch_file(const std::string& path, std::span<const TensorSource> sources);

}  // namespace octavo_train
