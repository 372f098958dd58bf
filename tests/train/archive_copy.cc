// archive_copy tar|torch|nemo|speech IN OUT: reads a file with train/formats and writes it again, for
// test_archives.py. `speech` reads a model by its path or its hub name, prints its parsed config, and writes
// a `.nemo` archive or a transformers folder.
// SPDX-License-Identifier: MIT
#include "train/formats/nemo.h"
#include "train/formats/tar.h"
#include "train/formats/torch_file.h"
#include "train/tasks/speech/archive/archive.h"

#include <iostream>
#include <string>
#include <string_view>

namespace {

using octavo::Result;
using octavo::Status;
using octavo_train::Bytes;

std::vector<octavo_train::TensorSource> sources_of(std::span<const octavo_train::StoredTensor> tensors) {
  std::vector<octavo_train::TensorSource> sources;
  for (const auto& tensor : tensors) {
    sources.push_back(
        {tensor.name, tensor.dtype, tensor.shape, [&tensor]() -> Result<Bytes> { return tensor.bytes; }});
  }
  return sources;
}

Status copy_tar(const std::string& in, const std::string& out) {
  const auto archive = octavo_train::TarArchive::open(in);
  if (!archive.ok()) return archive.status();
  std::vector<octavo_train::TarSource> sources;
  for (const auto& entry : archive->entries()) {
    sources.push_back({entry.name, entry.bytes.size(),
                       [&entry](const octavo_train::ByteSink& sink) { return sink(entry.bytes); }});
  }
  return octavo_train::write_tar(out, sources);
}

Status copy_torch(const std::string& in, const std::string& out) {
  const auto file = octavo_train::TorchFile::open(in);
  if (!file.ok()) return file.status();
  return octavo_train::write_torch_file(out, sources_of(file->tensors()));
}

Status copy_nemo(const std::string& in, const std::string& out) {
  const auto archive = octavo_train::NemoArchive::open(in);
  if (!archive.ok()) return archive.status();
  std::map<std::string, std::string> files;
  for (const auto& entry : archive->files()) {
    if (entry.name == "model_config.yaml" || entry.name == "model_weights.ckpt") continue;
    files[entry.name] = std::string(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
  }
  return octavo_train::write_nemo(out, archive->config(), sources_of(archive->weights().tensors()), files);
}

std::string list_text(const std::vector<std::int64_t>& values) {
  std::string out;
  for (const std::int64_t value : values) out += (out.empty() ? "" : ",") + std::to_string(value);
  return out;
}

void print(const octavo_train::SpeechConfig& config) {
  const auto& model = config.model;
  std::cout << "head " << static_cast<int>(model.head) << "\nmel_bands " << model.mel_bands
            << "\nsubsampling_channels " << model.subsampling_channels << "\nencoder_layers "
            << model.encoder_layers << "\nwidth " << model.width << "\nheads " << model.heads
            << "\nfeed_forward " << model.feed_forward << "\nkernel " << model.kernel << "\nvocabulary "
            << model.vocabulary << "\npredictor_width " << model.predictor_width << "\npredictor_layers "
            << model.predictor_layers << "\njoint_width " << model.joint_width << "\ndurations "
            << list_text(model.durations) << "\nsigma " << model.sigma << "\nomega " << model.omega
            << "\nreduction " << model.reduction << "\ndropout " << model.dropout << "\nattention_dropout "
            << model.attention_dropout << "\ninput_dropout " << model.input_dropout << "\npredictor_dropout "
            << model.predictor_dropout << "\njoint_dropout " << model.joint_dropout << "\npad " << config.pad
            << '\n';
  for (const std::string& note : config.notes) std::cout << "note " << note << '\n';
}

Status copy_speech(const std::string& in, const std::string& out) {
  const auto archive = octavo_train::SpeechArchive::open(in);
  if (!archive.ok()) return archive.status();
  print(archive->config());
  const auto sources = sources_of(archive->tensors());
  if (out.ends_with(".nemo")) return octavo_train::write_nemo_model(out, *archive, sources);
  return octavo_train::write_transformers_model(out, archive->settings(), &*archive, sources);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view kind = argc == 4 ? argv[1] : "";
  Status (*copy)(const std::string&, const std::string&) = kind == "tar"      ? copy_tar
                                                           : kind == "torch"  ? copy_torch
                                                           : kind == "nemo"   ? copy_nemo
                                                           : kind == "speech" ? copy_speech
                                                                              : nullptr;
  if (copy == nullptr) {
    std::cerr << "usage: archive_copy tar|torch|nemo|speech IN OUT\n";
    return 2;
  }
  const Status status = copy(argv[2], argv[3]);
  if (!status.ok()) std::cerr << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
