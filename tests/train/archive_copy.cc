// archive_copy tar|torch|nemo IN OUT: reads a file with train/files and writes what it found, for
// test_archives.py.
// SPDX-License-Identifier: MIT
#include "train/files/nemo.h"
#include "train/files/tar.h"
#include "train/files/torch_file.h"

#include <iostream>
#include <string>
#include <string_view>

namespace {

using octavo::Result;
using octavo::Status;
using octavo::train::Bytes;

std::vector<octavo::train::TensorSource> sources_of(const octavo::train::TorchFile& file) {
  std::vector<octavo::train::TensorSource> sources;
  for (const auto& tensor : file.tensors()) {
    sources.push_back(
        {tensor.name, tensor.dtype, tensor.shape, [&tensor]() -> Result<Bytes> { return tensor.bytes; }});
  }
  return sources;
}

Status copy_tar(const std::string& in, const std::string& out) {
  const auto archive = octavo::train::TarArchive::open(in);
  if (!archive.ok()) return archive.status();
  std::vector<octavo::train::TarSource> sources;
  for (const auto& entry : archive->entries()) {
    sources.push_back({entry.name, entry.bytes.size(),
                       [&entry](const octavo::train::ByteSink& sink) { return sink(entry.bytes); }});
  }
  return octavo::train::write_tar(out, sources);
}

Status copy_torch(const std::string& in, const std::string& out) {
  const auto file = octavo::train::TorchFile::open(in);
  if (!file.ok()) return file.status();
  return octavo::train::write_torch_file(out, sources_of(*file));
}

Status copy_nemo(const std::string& in, const std::string& out) {
  const auto archive = octavo::train::NemoArchive::open(in);
  if (!archive.ok()) return archive.status();
  std::map<std::string, std::string> files;
  for (const auto& entry : archive->files()) {
    if (entry.name == "model_config.yaml" || entry.name == "model_weights.ckpt") continue;
    files[entry.name] = std::string(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
  }
  return octavo::train::write_nemo(out, archive->config(), sources_of(archive->weights()), files);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view kind = argc == 4 ? argv[1] : "";
  Status (*copy)(const std::string&, const std::string&) = kind == "tar"     ? copy_tar
                                                           : kind == "torch" ? copy_torch
                                                           : kind == "nemo"  ? copy_nemo
                                                                             : nullptr;
  if (copy == nullptr) {
    std::cerr << "usage: archive_copy tar|torch|nemo IN OUT\n";
    return 2;
  }
  const Status status = copy(argv[2], argv[3]);
  if (!status.ok()) std::cerr << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
