// How files of other programs say what features are: NeMo's config and transformers'
// preprocessor_config.json; and NeMo's tables. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/tensor_list.h"
#include "train/tasks/speech/archive_keys.h"
#include "train/tasks/speech/feature_tables.h"

#include <octavo/status.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// The keys of NeMo's section `preprocessor`; write_keys writes it.
std::vector<ForeignKey> nemo_feature_keys();
// Into out.features. A config without the section has the standard ones, with the model's bands.
Status read_nemo_features(const YamlNode& root, const Source& source, ForeignModel& out);

// Where transformers has them, the first that is there: a file, and the key in it.
struct FeatureFile {
  std::string_view name, prefix;
};
inline constexpr FeatureFile kFeatureFiles[] = {{"preprocessor_config.json", ""},
                                                {"processor_config.json", "feature_extractor."}};
Result<FeatureSettings> read_transformers_features(std::string_view json, std::string_view prefix,
                                                   const std::string& name);
// The text of preprocessor_config.json. transformers always takes 0 Hz to half the rate, and 2^-24 as guard.
Result<std::string> transformers_features(const FeatureSettings& settings);

// Of the tensors of NeMo's preprocessor. One that is not there or not in fp32 is left empty: what is made
// from the settings has more digits. `name` is the archive's.
Result<FeatureTables> stored_feature_tables(std::span<const StoredTensor> preprocessor,
                                            const FeatureSettings& settings, const std::string& name);

}  // namespace octavo::train
