// See nemo.h.
// SPDX-License-Identifier: MIT
#include "train/formats/nemo.h"

#include "train/formats/tensor_list.h"
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
  ASSIGN_OR_RETURN(TarArchive archive, TarArchive::open(path, inflated_limit));
  NemoArchive opened;
  opened.archive_ = std::move(archive);
  for (const std::string_view name : {kConfig, kWeights})
    if (opened.find(name) == nullptr)
      return invalid_error("{}: no file {} in the archive, expected a model of NeMo", path, quote_name(name));
  opened.config_ = as_text(opened.find(kConfig)->bytes);
  if (opened.config_.size() > kConfigLimit) {
    return invalid_error("{}: {}: {}, expected at most {}", path, quote_name(kConfig),
                         size_text(opened.config_.size()), size_text(kConfigLimit));
  }
  ASSIGN_OR_RETURN(TorchFile weights, with_context(path + ": " + std::string(kWeights),
                                                   TorchFile::read(opened.find(kWeights)->bytes)));
  opened.weights_ = std::move(weights);
  return opened;
}

Status write_nemo(const std::string& path, std::string_view config, std::span<const TensorSource> weights,
                  const std::map<std::string, std::string>& files) {
  ASSIGN_OR_RETURN(const TorchFileLayout plan,
                   with_context(path, plan_torch_file(weights, std::string(kRoot))));
  std::vector<TarSource> sources = {text_source(kConfig, config)};
  for (const auto& [name, text] : files) sources.push_back(text_source(name, text));
  sources.push_back({"./" + std::string(kWeights), plan.size,
                     [&](const ByteSink& sink) { return write_planned(sink, plan, weights); }});
  return write_tar(path, sources);
}

}  // namespace octavo_train
