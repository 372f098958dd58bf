// Reads and writes files of the `safetensors` format, which Python reads with the package of that name: 8
// bytes of header length (little endian), a JSON header, then the bytes of the tensors without gaps. Files
// are written to a partial file in the same folder, fsynced and renamed. They are read through a memory map.
// A file is untrusted until open() has checked it: before a range that a header states is known to be inside
// the file, nothing is allocated for it and none of its bytes are accessed.
//
//   octavo_train::TensorSource source{"embed", "F32", {256, 64}, [&] { return Bytes(values); }};
//   auto status = octavo_train::write_safetensors("model.safetensors", {&source, 1}, {{"format", "pt"}});
//   auto file = octavo_train::Safetensors::open("model.safetensors");
//   if (file.ok()) use(file->find("embed")->bytes);
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/tensor_list.h"
#include "train/io/files.h"
#include "train/io/output_file.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// Writes a file. Tensors with wider elements come first; otherwise the given order is kept. So every tensor
// is aligned to its element size, and the first tensor to 8 bytes. Names, dtypes and shapes are checked
// before anything is written.
Status write_safetensors(const std::string& path, std::span<const TensorSource> sources,
                         const std::map<std::string, std::string>& metadata = {});

// Returns the exact size in bytes of the file that write_safetensors() would write, without calling the
// sources.
Result<std::uint64_t> safetensors_size(std::span<const TensorSource> sources,
                                       const std::map<std::string, std::string>& metadata = {});

// The layout of a file that will be written.
struct SafetensorsLayout {
  std::string header;              // padded, without the length field
  std::vector<std::size_t> order;  // indices of the sources, in the order of the file
  std::uint64_t size = 0;          // bytes of the file
};

Result<SafetensorsLayout> plan_safetensors(std::span<const TensorSource> sources,
                                           const std::map<std::string, std::string>& metadata);
Status write_planned(OutputFile& file, const SafetensorsLayout& plan, std::span<const TensorSource> sources);

// A file opened for reading. Moving the object does not move the bytes. If another process truncates the file
// while it is open, SIGBUS ends this process. So checkpoints are replaced by rename, never written in place.
class Safetensors {
 public:
  static Result<Safetensors> open(const std::string& path);
  // Reads a file from memory, which must outlive the returned object. Errors contain no path.
  static Result<Safetensors> read(Bytes file);

  // Returns the tensors in the order of the file.
  [[nodiscard]] std::span<const StoredTensor> tensors() const { return tensors_.all(); }
  [[nodiscard]] const StoredTensor* find(std::string_view name) const { return tensors_.find(name); }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  Safetensors() = default;

  MappedFile file_;
  TensorList tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace octavo_train
