// safetensors_copy IN OUT: reads a file with train/formats and writes it again, for test_safetensors.py.
// SPDX-License-Identifier: MIT
#include "train/formats/safetensors.h"

#include <iostream>

int main(int argc, char** argv) {
  using octavo_train::Bytes;
  if (argc != 3) {
    std::cerr << "usage: safetensors_copy IN OUT\n";
    return 2;
  }
  const auto file = octavo_train::Safetensors::open(argv[1]);
  octavo::Status status = file.status();
  if (status.ok()) {
    std::vector<octavo_train::TensorSource> sources;
    for (const auto& tensor : file->tensors()) {
      sources.push_back({tensor.name, tensor.dtype, tensor.shape,
                         [&tensor]() -> octavo::Result<Bytes> { return tensor.bytes; }});
    }
    status = octavo_train::write_safetensors(argv[2], sources, file->metadata());
  }
  if (!status.ok()) std::cerr << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
