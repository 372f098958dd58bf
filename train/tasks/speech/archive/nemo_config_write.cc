// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/nemo_config.h"

#include "train/tasks/speech/archive/archive_features.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;
using Keys = std::vector<ExternalConfigKey>;

ExternalConfigKey key(std::string path, const Json& value) { return only(std::move(path), "", value.dump()); }

void add(Keys& keys, const Keys& more) { keys.insert(keys.end(), more.begin(), more.end()); }

// Returns the keys that NeMo's constructors require besides the model's own sizes.
Keys transducer_extras(const SpeechModelSettings& model, const Json& labels) {
  const bool tdt = model.head == SpeechHead::tdt;
  Keys out = {
      key("model_defaults.enc_hidden", model.width),
      key("model_defaults.pred_hidden", model.predictor_width),
      key("model_defaults.joint_hidden", model.joint_width),
      key("decoder.random_state_sampling", false),
      key("decoder.vocab_size", model.vocabulary),
      key("joint.log_softmax", nullptr),
      key("joint.preserve_memory", false),
      key("joint.fuse_loss_wer", true),
      key("joint.fused_batch_size", 4),
      key("joint.jointnet.encoder_hidden", model.width),
      key("joint.jointnet.pred_hidden", model.predictor_width),
      key("joint.num_classes", model.vocabulary),
      key("joint.vocabulary", labels),
      key("decoding.strategy", "greedy_batch"),
      key("decoding.greedy.max_symbols", model.max_symbols),
      key("loss.loss_name", tdt ? "tdt" : "default"),
      key("labels", labels),
      key("target", "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel"),
  };
  if (!tdt) return out;
  const auto durations = static_cast<std::int64_t>(model.durations.size());
  out.push_back(key("model_defaults.tdt_durations", model.durations));
  out.push_back(key("model_defaults.num_tdt_durations", durations));
  out.push_back(key("joint.num_extra_outputs", durations));
  out.push_back(key("decoding.model_type", "tdt"));
  out.push_back(key("decoding.durations", model.durations));
  return out;
}

Keys ctc_extras(const SpeechModelSettings& model, const Json& labels) {
  return {key("decoder.feat_in", model.width), key("decoder.num_classes", model.vocabulary),
          key("decoder.vocabulary", labels), key("decoding.strategy", "greedy_batch"),
          key("target", "nemo.collections.asr.models.ctc_bpe_models.EncDecCTCModelBPE")};
}

// Returns NeMo's default training keys, which its training scripts overwrite. Both sections are needed:
// NeMo's transcribe() reads validation_ds, and a training script sets the manifests in both.
Keys training_keys(std::int64_t sample_rate) {
  Keys out;
  for (const bool train : {true, false}) {
    const std::string in = train ? "train_ds." : "validation_ds.";
    add(out, {key(in + "manifest_filepath", nullptr), key(in + "sample_rate", sample_rate),
              key(in + "batch_size", 16), key(in + "shuffle", train), key(in + "num_workers", 8),
              key(in + "pin_memory", true), key(in + "use_start_end_token", false)});
    if (train) add(out, {key(in + "max_duration", 20), key(in + "min_duration", 0.1)});
  }
  add(out,
      {key("spec_augment._target_", "nemo.collections.asr.modules.SpectrogramAugmentation"),
       key("spec_augment.freq_masks", 2), key("spec_augment.time_masks", 10),
       key("spec_augment.freq_width", 27), key("spec_augment.time_width", 0.05), key("optim.name", "adamw"),
       key("optim.lr", 1e-4), key("optim.betas", Json::array({0.9, 0.98})), key("optim.weight_decay", 1e-3)});
  return out;
}

std::string_view section_of(const ExternalConfigKey& key, std::size_t parts) {
  std::size_t end = 0;
  for (; parts > 0 && end != std::string::npos; --parts) end = key.path.find('.', end + 1);
  return std::string_view(key.path).substr(0, end);
}

// Groups the keys of each object. The objects keep the order of their first keys.
void gather(Keys& keys, std::size_t parts) {
  Keys out;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::string section(section_of(keys[i], parts));
    const bool seen =
        std::any_of(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const ExternalConfigKey& each) { return section_of(each, parts) == section; });
    if (seen) continue;
    std::copy_if(keys.begin(), keys.end(), std::back_inserter(out),
                 [&](const ExternalConfigKey& each) { return section_of(each, parts) == section; });
  }
  keys = std::move(out);
}

}  // namespace

Result<std::string> nemo_config(const SpeechModelSettings& model, const FeatureSettings& features,
                                std::span<const std::string> pieces, const NamedFiles& files) {
  if (model.feed_forward % model.width != 0) {
    return Status::unsupported("NeMo has feed-forward layers of a multiple of the width; the model has " +
                               std::to_string(model.feed_forward) + " and " + std::to_string(model.width) +
                               ": write a folder of transformers");
  }
  const Json labels(std::vector<std::string>(pieces.begin(), pieces.end()));
  Keys keys = {key("sample_rate", features.sample_rate)};
  add(keys, nemo_feature_keys());
  keys.push_back(key("tokenizer.dir", "tokenizer"));
  keys.push_back(key("tokenizer.type", "bpe"));
  for (const auto& [name, file] : files) keys.push_back(key("tokenizer." + name, "nemo:" + file));
  add(keys, nemo_model_keys(model.head));
  add(keys, model.head == SpeechHead::ctc ? ctc_extras(model, labels) : transducer_extras(model, labels));
  add(keys, training_keys(features.sample_rate));
  gather(keys, 1);
  gather(keys, 2);
  ExternalModelConfig from;
  from.model = model;
  from.features = features;
  from.feed_forward_factor = model.feed_forward / model.width;
  return write_keys(keys, from);
}

}  // namespace octavo_train
