// Translates between the two names of a speech model's tensors: NeMo's, used in a `.nemo` archive, and that
// of transformers, which the model here uses too. One table serves both directions.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace octavo_train {

// Returns the name in transformers, or nullopt if transformers has no such tensor.
[[nodiscard]] std::optional<std::string> transformers_name(std::string_view nemo);
// Returns the name in NeMo, or nullopt if NeMo has no such tensor. `joint_dropout` is the model's. NeMo
// numbers the joint network's modules, and dropout is one of them if it is not 0. So the last layer is
// joint.joint_net.2 with dropout, and joint.joint_net.1 without.
[[nodiscard]] std::optional<std::string> nemo_name(std::string_view transformers, double joint_dropout);

// Returns true for the tensors of NeMo's preprocessor, its window and its filterbank. Other model files do
// not contain them.
[[nodiscard]] bool is_preprocessor_name(std::string_view nemo);

}  // namespace octavo_train
