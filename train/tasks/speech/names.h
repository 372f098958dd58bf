// Tensors of a speech model have two names: NeMo's, in a `.nemo` archive, and transformers', which the model
// here has too. One table serves both ways.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace octavo::train {

// None: the other side has no tensor of that name.
[[nodiscard]] std::optional<std::string> transformers_name(std::string_view nemo);
// `joint_dropout`: the model's. NeMo numbers the joint network's modules, and dropout is one of them if it is
// not 0: the last layer is joint.joint_net.2, and joint.joint_net.1 without dropout.
[[nodiscard]] std::optional<std::string> nemo_name(std::string_view transformers, double joint_dropout);

// NeMo's preprocessor stores its window and its filterbank, which no other model file has.
[[nodiscard]] bool is_preprocessor_name(std::string_view nemo);

}  // namespace octavo::train
