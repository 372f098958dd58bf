// Parts of a model that begin anew where its first weights come from one with another vocabulary: the rest is
// taken over.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/named_tensors.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

struct RenamedTensor;

struct FreshParts {
  std::string what;                                    // "decoder and joint"
  std::vector<std::string> by_token;                   // tensors with a row for every token
  std::function<bool(const std::string& name)> holds;  // whether a tensor is of these parts
};

// Where a tensor of `by_token` has another number of rows in the file, the parts are taken out of both lists.
// Then a line for the console, which says so.
std::optional<std::string> set_apart(const FreshParts& fresh, std::vector<RenamedTensor>& stored,
                                     NamedTensors& model);

}  // namespace octavo::train
