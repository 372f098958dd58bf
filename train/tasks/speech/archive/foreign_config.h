// Describes the model config of another program as a table of keys. A key is read into a setting, must have
// the only value that Octavo's model supports, or is ignored with a note. The tables of nemo_config.cc and
// transformers_config.cc read and write configs.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/codec.h"
#include "train/config/yaml.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/config/codecs.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo_train {

// The largest width of a layer that a config may have.
inline constexpr std::int64_t kMostWidth = 1 << 16;
// The limit of max_symbols, the number of labels that a transducer may emit at one frame.
inline constexpr std::int64_t kMostSymbols = 1 << 16;

// The settings read from a config, and the values that have no field in them.
struct ExternalModelConfig : SpeechConfig {
  std::int64_t feed_forward_factor = 4;             // NeMo: a multiple of the width
  std::int64_t blank = 0;                           // transformers
  double activation_dropout = 0.1;                  // transformers: inside the feed-forward
  std::int64_t hop_length = 160, win_length = 400;  // transformers: in samples
};

// A message about an unsupported value, or nothing.
using ForeignProblem = std::optional<std::string>;

struct ExternalConfigKey {
  std::string path;      // `encoder.d_model`
  std::string standard;  // the value of a missing key, as YAML; empty: the key is required
  std::function<ForeignProblem(const YamlNode&, ExternalModelConfig&)> read;
  std::function<std::string(const ExternalModelConfig&)> write;  // JSON, which is YAML too
  std::string null_value = {};  // the value of an explicit null, as YAML; empty: as for a missing key
};
using ExternalConfigKeys = std::vector<ExternalConfigKey>;

// Returns the key with `value` as the meaning of an explicit null. NeMo passes null to its constructors,
// where it often means "off".
ExternalConfigKey with_null(ExternalConfigKey key, std::string value);

// Returns a key that is read into a member of SpeechModelSettings, FeatureSettings or ExternalModelConfig.
template <class T, class Owner>
ExternalConfigKey taken(std::string path, std::string standard, Codec<T> codec, T Owner::*member) {
  const auto place = [member](auto& all) -> auto& {
    if constexpr (std::is_same_v<Owner, SpeechModelSettings>)
      return all.model.*member;
    else if constexpr (std::is_same_v<Owner, FeatureSettings>)
      return all.features.*member;
    else
      return all.*member;
  };
  auto read = [place, codec](const YamlNode& node, ExternalModelConfig& out) -> ForeignProblem {
    std::optional<T> value = codec.read(node);
    if (!value) return fmt::format("got {}, expected {}", shown(node), codec.expected);
    place(out) = std::move(*value);
    return std::nullopt;
  };
  auto write = [place, codec](const ExternalModelConfig& from) { return codec.write(place(from)); };
  return {std::move(path), std::move(standard), std::move(read), std::move(write)};
}

// Returns a key for which the model supports only `value`, which is JSON.
ExternalConfigKey only(std::string path, std::string standard, std::string value);
// Returns a required key that must name the class `value`. Only the last part of the dotted name is compared.
ExternalConfigKey class_name(std::string path, std::string value);
// Returns a key that changes training but not the weights. The model always behaves as with `value`; any
// other value adds a note.
ExternalConfigKey left(std::string path, std::string standard, std::string value);
// Returns a codec that accepts one of the words and writes it as a JSON string.
Codec<std::string> quoted_word(std::vector<std::string> words);

// Returns the value at a dotted path, or null if the path does not exist or, unless `or_null`, has a null.
const YamlNode* find_node(const YamlNode& root, std::string_view path, bool or_null = true);
// Returns the text of the scalar at a path, or an empty text if there is no scalar.
std::string text_at(const YamlNode& root, std::string_view path);

// Reads all keys of the table, in the table's order. The error names the position in the file.
Status read_keys(const YamlNode& root, const Source& source, std::span<const ExternalConfigKey> keys,
                 ExternalModelConfig& out);

// Returns an error unless the number of heads divides the width. `path` is the key of the number of heads.
Status check_heads(const YamlNode& root, const Source& source, std::string_view path,
                   const SpeechModelSettings& model);
// Returns an error about the value at a path, with its position in the file if the key exists.
Status refuse_key(const YamlNode& root, const Source& source, std::string_view path,
                  std::string_view problem);

// Returns JSON text in which dotted keys are nested objects, in the order of their first keys.
std::string write_keys(std::span<const ExternalConfigKey> keys, const ExternalModelConfig& from);

// Returns the text of NeMo's model_config.yaml for a model that no NeMo archive describes. The text is JSON
// and therefore valid YAML. `files` maps NeMo's keys for the tokenizer's files to their names in the archive.
Result<std::string> nemo_config(const SpeechModelSettings& model, const FeatureSettings& features,
                                std::span<const std::string> pieces, const NamedFiles& files);

// A file in which transformers stores feature settings, and the prefix of their keys in it. The first
// existing file of kFeatureFiles is read.
struct FeatureFile {
  std::string name, prefix;
};
inline const FeatureFile kFeatureFiles[] = {{"preprocessor_config.json", ""},
                                            {"processor_config.json", "feature_extractor."}};
Result<FeatureSettings> read_transformers_features(std::string_view json, const std::string& prefix,
                                                   const std::string& name);
// Returns the text of preprocessor_config.json, or an error if transformers cannot compute these features:
// its bands always range from 0 Hz to half the sample rate, and its log guard is always 2^-24.
Result<std::string> transformers_features(const FeatureSettings& settings);

}  // namespace octavo_train
