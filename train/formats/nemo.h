// Reads and writes NeMo models (`.nemo`). A model is a tar archive, compressed with gzip or not, that
// contains `model_config.yaml`, `model_weights.ckpt` (a torch file of a state dict) and files that the config
// names, such as a tokenizer's.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/tar.h"
#include "train/formats/torch_file.h"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace octavo_train {

class NemoArchive {
 public:
  static Result<NemoArchive> open(const std::string& path, std::uint64_t inflated_limit = kInflatedLimit);

  [[nodiscard]] std::string_view config() const { return config_; }  // YAML, as it is in the archive
  [[nodiscard]] const TorchFile& weights() const { return *weights_; }
  // Returns all files in the archive, including the config and the weights.
  [[nodiscard]] std::span<const TarEntry> files() const { return archive_->entries(); }
  [[nodiscard]] const TarEntry* find(std::string_view name) const { return archive_->find(name); }

 private:
  NemoArchive() = default;

  std::optional<TarArchive> archive_;
  std::string_view config_;
  std::optional<TorchFile> weights_;
};

// Writes a model to a partial file in the same folder, which is fsynced and renamed. `files` are the other
// files, by name.
Status write_nemo(const std::string& path, std::string_view config, std::span<const TensorSource> weights,
                  const std::map<std::string, std::string>& files = {});

}  // namespace octavo_train
