// Reads and writes feature settings in the formats of other programs: the section `preprocessor` of NeMo's
// config and transformers' preprocessor_config.json. Also reads NeMo's window and filterbank. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/tensor_list.h"
#include "train/tasks/speech/archive/config_keys.h"
#include "train/tasks/speech/features/feature_tables.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// Returns the keys of NeMo's section `preprocessor`. write_keys() writes the section from them.
std::vector<ExternalConfigKey> nemo_feature_keys();
// Reads the section `preprocessor` into out.features. A config without the section means the default
// features, with the number of mel bands of the model.
Status read_nemo_features(const YamlNode& root, const Source& source, ExternalModelConfig& out);

// A file in which transformers stores feature settings, and the prefix of their keys in it. The first
// existing file of kFeatureFiles is read.
struct FeatureFile {
  std::string_view name, prefix;
};
inline constexpr FeatureFile kFeatureFiles[] = {{"preprocessor_config.json", ""},
                                                {"processor_config.json", "feature_extractor."}};
Result<FeatureSettings> read_transformers_features(std::string_view json, std::string_view prefix,
                                                   const std::string& name);
// Returns the text of preprocessor_config.json, or an error if transformers cannot compute these features:
// its bands always range from 0 Hz to half the sample rate, and its log guard is always 2^-24.
Result<std::string> transformers_features(const FeatureSettings& settings);

// Returns the window and the filterbank that are among NeMo's preprocessor tensors. A table that is missing
// or not in fp32 is left empty, because a table computed from the settings is more precise. `name` is the
// archive's name, for error messages.
Result<FeatureTables> stored_feature_tables(std::span<const StoredTensor> preprocessor,
                                            const FeatureSettings& settings, const std::string& name);

}  // namespace octavo_train
