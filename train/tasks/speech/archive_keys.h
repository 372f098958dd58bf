// The config of a model that another program wrote, as a table: which keys the model here takes, which it has
// only one value for, and which it does not follow. The table reads a config and writes one.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"
#include "train/config/node.h"
#include "train/tasks/speech/codecs.h"
#include "train/tasks/speech/feature_settings.h"
#include "train/tasks/speech/model_settings.h"

#include <octavo/status.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo::train {

// Of any layer that a config describes.
inline constexpr std::int64_t kMostWidth = 1 << 16;
// The limit of max_symbols, the labels at one frame of a transducer.
inline constexpr std::int64_t kMostSymbols = 1 << 16;

// What was read, with numbers that those programs have and SpeechModelSettings has not.
struct ForeignModel {
  SpeechModelSettings model;
  FeatureSettings features;
  std::int64_t feed_forward_factor = 4;             // NeMo: of the width
  std::int64_t blank = 0;                           // transformers
  std::int64_t pad = 0;                             // transformers
  double activation_dropout = 0.1;                  // transformers: inside the feed-forward
  std::int64_t hop_length = 160, win_length = 400;  // transformers: in samples
  std::vector<std::string> notes;  // what a user should know: the model here does it otherwise
};

// A sentence about a value that does not fit, or nothing.
using ForeignProblem = std::optional<std::string>;

struct ForeignKey {
  std::string path;      // `encoder.d_model`
  std::string standard;  // what a config without it means, as YAML; empty: it must be there
  std::function<ForeignProblem(const YamlNode&, ForeignModel&)> read;
  std::function<std::string(const ForeignModel&)> write;  // JSON, which is YAML too
  std::string null_value = {};  // what an explicit null means, as YAML; empty: the same as a missing key
};
// Returns the key with `value` as the meaning of an explicit null. NeMo passes null to its constructors,
// where it often means "off".
ForeignKey with_null(ForeignKey key, std::string value);

// A value that the model takes: a member of SpeechModelSettings, of FeatureSettings or of ForeignModel.
template <class T, class Owner>
ForeignKey taken(std::string path, std::string standard, Codec<T> codec, T Owner::*member) {
  const auto place = [member](auto& all) -> auto& {
    if constexpr (std::is_same_v<Owner, SpeechModelSettings>)
      return all.model.*member;
    else if constexpr (std::is_same_v<Owner, FeatureSettings>)
      return all.features.*member;
    else
      return all.*member;
  };
  auto read = [place, codec](const YamlNode& node, ForeignModel& out) -> ForeignProblem {
    std::optional<T> value = codec.read(node);
    if (!value) return "got " + shown(node) + ", expected " + codec.expected;
    place(out) = std::move(*value);
    return std::nullopt;
  };
  auto write = [place, codec](const ForeignModel& from) { return codec.write(place(from)); };
  return {std::move(path), std::move(standard), std::move(read), std::move(write)};
}

// The model here has this value alone, given as JSON. `class_name`: the end of a dotted name counts.
ForeignKey only(std::string path, std::string standard, std::string value);
ForeignKey class_name(std::string path, std::string value);
// A value that changes training, not weights, and that the model here does not follow: others are noted.
ForeignKey left(std::string path, std::string standard, std::string value);
// A text, as JSON.
Codec<std::string> quoted_word(std::vector<std::string> words);

// The value at a dotted path; null where there is none.
const YamlNode* find_node(const YamlNode& root, std::string_view path);
// The text of the scalar at a path; empty: there is none.
std::string text_at(const YamlNode& root, std::string_view path);

// All keys of the table, in its order. The error names the place.
Status read_keys(const YamlNode& root, const Source& source, std::span<const ForeignKey> keys,
                 ForeignModel& out);

// That the heads divide the width. `path` is of the number of heads.
Status check_heads(const YamlNode& root, const Source& source, std::string_view path,
                   const SpeechModelSettings& model);
// An error about the value at a path, at its place where it has one.
Status refuse_key(const YamlNode& root, const Source& source, std::string_view path,
                  std::string_view problem);

// A text of JSON with the keys as objects in objects. REQUIRES: keys of one object lie together.
std::string write_keys(std::span<const ForeignKey> keys, const ForeignModel& from);

}  // namespace octavo::train
