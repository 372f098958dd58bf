// See nemo.h.
// SPDX-License-Identifier: MIT
#include "train/formats/nemo.h"

#include "train/formats/safetensors_format.h"
#include "train/io/little_endian.h"

namespace octavo_train {
namespace {

constexpr std::string_view kConfig = "model_config.yaml";
constexpr std::string_view kWeights = "model_weights.ckpt";
constexpr std::string_view kRoot = "model_weights";  // torch.save's root folder for that file name
constexpr std::size_t kConfigLimit = std::size_t{16} << 20;

TarSource text_source(std::string_view name, std::string_view text) {
  return {"./" + std::string(name), text.size(),
          [text](const ByteSink& sink) { return sink(std::as_bytes(std::span(text))); }};
}

}  // namespace

Result<NemoArchive> NemoArchive::open(const std::string& path, std::uint64_t inflated_limit) {
  Result<TarArchive> archive = TarArchive::open(path, inflated_limit);
  if (!archive.ok()) return archive.status();
  NemoArchive opened;
  opened.archive_ = std::move(*archive);
  for (const std::string_view name : {kConfig, kWeights}) {
    if (opened.find(name) == nullptr) {
      return Status::invalid(path + ": no file " + quote_name(name) +
                             " in the archive, expected a model of NeMo");
    }
  }
  opened.config_ = as_text(opened.find(kConfig)->bytes);
  if (opened.config_.size() > kConfigLimit) {
    return Status::invalid(path + ": " + quote_name(kConfig) + ": " + size_text(opened.config_.size()) +
                           ", expected at most " + size_text(kConfigLimit));
  }
  Result<TorchFile> weights = TorchFile::read(opened.find(kWeights)->bytes);
  if (!weights.ok()) return placed(path + ": " + std::string(kWeights), weights.status());
  opened.weights_ = std::move(*weights);
  return opened;
}

Status write_nemo(const std::string& path, std::string_view config, std::span<const TensorSource> weights,
                  const std::map<std::string, std::string>& files) {
  const Result<TorchFileLayout> plan = plan_torch_file(weights, std::string(kRoot));
  if (!plan.ok()) return placed(path, plan.status());
  std::vector<TarSource> sources = {text_source(kConfig, config)};
  for (const auto& [name, text] : files) sources.push_back(text_source(name, text));
  sources.push_back({"./" + std::string(kWeights), plan->size,
                     [&](const ByteSink& sink) { return write_planned(sink, *plan, weights); }});
  return write_tar(path, sources);
}

}  // namespace octavo_train
