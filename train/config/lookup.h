// Finds what the words of a config mean. First the task is determined: the one that the config names, or the
// one that has its model. Then the key of each word: nested or flat, in lower or UPPER case, or a name from
// another tool. For a word that is not a key, the most similar key is found.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/schema.h"
#include "train/config/yaml.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

struct Found {
  std::size_t key;      // position in the schema; kNoKey if the word is a section
  std::string section;  // the section's path, if `key` is kNoKey
};

// `section` is the mapping that contains the word; empty at the top level. At the top level, a key may be
// given without its section, if only one section has it, or with its section before a dot. Sections can be
// nested: the key model.encoder.d_model may be in `encoder:` of `model:`, or be written as encoder.d_model.
// The error contains no place: `training.learning_rat: unknown key; did you mean …`.
//
// Suggest::no skips the search for a similar key, which takes most of the time. It is for callers that do not
// show the error.
enum class Suggest { no, yes };
Result<Found> find_key(const Schema& schema, std::string_view section, std::string_view word,
                       Suggest suggest = Suggest::yes);

// One level of precedence: the mappings of the file, or of all words of the command line.
struct ConfigInput {
  Source source;
  std::vector<YamlNode> maps;
};

// Returns the task of a config. Later inputs override earlier inputs. If neither a task nor a model is given,
// it is the first of declared_tasks(). The error for an unknown task or model contains its place.
Result<const TaskConfig*> choose_task(std::span<const ConfigInput> inputs);

}  // namespace octavo_train
