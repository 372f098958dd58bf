// Tensors in a file of torch.save: a zip archive with a pickle that describes a state dict and one entry for
// each storage. Python's torch.load(weights_only=True) reads what is written here. Reading executes nothing
// (pickle.h), and a file is hostile until it has been checked: nothing that it says is allocated or touched
// before it is known to lie inside the file.
//
//   auto file = octavo::train::TorchFile::open("model_weights.ckpt");
//   if (file.ok()) use(file->find("encoder.weight")->bytes);
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/safetensors.h"
#include "train/formats/tensor_list.h"
#include "train/io/output_file.h"

#include <octavo/status.h>

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

class TorchFile {
 public:
  static Result<TorchFile> open(const std::string& path);
  // A file that lies in memory, which must outlive this. Errors begin with an entry or a byte of it.
  static Result<TorchFile> read(Bytes file);

  // In the order of the dict. The bytes are contiguous, whatever the strides were. Those of tensors that
  // share a storage may be the same; they lie in the file unless the tensor had to be copied.
  [[nodiscard]] std::span<const StoredTensor> tensors() const { return tensors_.all(); }
  [[nodiscard]] const StoredTensor* find(std::string_view name) const { return tensors_.find(name); }

 private:
  TorchFile() = default;

  MappedFile file_;
  std::deque<std::vector<std::byte>> copies_;  // of tensors with gaps or other orders
  TensorList tensors_;
};

// A file laid out before it is written.
struct TorchPlan {
  std::string pickle;
  std::string root;        // the folder of all entries
  std::uint64_t size = 0;  // of the file
};

// Dtypes that torch has no storage class for (unsigned ones above 8 bits, F8) are errors. `root` is the
// folder of all entries: torch takes the file's name without its end.
Result<TorchPlan> plan_torch_file(std::span<const TensorSource> sources, std::string root = "archive");
Status write_planned(const ByteSink& sink, const TorchPlan& plan, std::span<const TensorSource> sources);

Status write_torch_file(const std::string& path, std::span<const TensorSource> sources);

}  // namespace octavo::train
