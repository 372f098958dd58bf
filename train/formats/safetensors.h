// Tensors in a file of the `safetensors` format, which Python reads with the package of that name: 8 bytes of
// header length (little endian), a JSON header, then the bytes of the tensors without holes. Files are
// written beside their place, fsynced and renamed, and read through a memory map. A file is hostile until
// open() has checked it: nothing that a header says is allocated or touched before it is known to lie inside
// the file.
//
//   octavo::train::TensorSource source{"embed", "F32", {256, 64}, [&] { return Bytes(values); }};
//   auto status = octavo::train::write_safetensors("model.safetensors", {&source, 1}, {{"format", "pt"}});
//   auto file = octavo::train::Safetensors::open("model.safetensors");
//   if (file.ok()) use(file->find("embed")->bytes);
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/tensor_list.h"
#include "train/io/mapped_file.h"

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// Bytes per element of a dtype as the format spells it: BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0, U16 I16 F16 BF16,
// U32 I32 F32, U64 I64 F64. 0: not one of them.
[[nodiscard]] std::size_t element_size(std::string_view dtype);

// A tensor to be written.
struct TensorSource {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;  // {}: a scalar
  // Called once, in the order of the file. The bytes must stay valid until the next call or the end of the
  // write. So one buffer is enough to copy the tensors of a GPU one at a time.
  std::function<Result<Bytes>()> bytes;
};

// Wide elements come before narrow ones, otherwise the order is as given: so every tensor is aligned to its
// elements, and the first to 8 bytes. Names, dtypes and shapes are checked before anything is written.
Status write_safetensors(const std::string& path, std::span<const TensorSource> sources,
                         const std::map<std::string, std::string>& metadata = {});

// The size of that file, to the byte, without calling the sources.
Result<std::uint64_t> safetensors_size(std::span<const TensorSource> sources,
                                       const std::map<std::string, std::string>& metadata = {});

// A file opened for reading. Moving it keeps the bytes where they are. If another process cuts the file short
// while it is open, this one ends (SIGBUS): so checkpoints are replaced by rename, never written in place.
class Safetensors {
 public:
  static Result<Safetensors> open(const std::string& path);
  // A file that lies in memory, which must outlive this. Errors have no path.
  static Result<Safetensors> read(Bytes file);

  // In the order of the file.
  [[nodiscard]] std::span<const StoredTensor> tensors() const { return tensors_.all(); }
  [[nodiscard]] const StoredTensor* find(std::string_view name) const { return tensors_.find(name); }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  Safetensors() = default;

  MappedFile file_;
  TensorList tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace octavo::train
