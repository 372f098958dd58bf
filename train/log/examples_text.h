// The examples of an evaluation as a table in Markdown, for TensorBoard: what was said beside what was heard,
// with the words that differ in bold.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo::train {

// Of a record's member `examples`; empty where it has none. Texts are shown as they are: nothing in them is
// markup.
std::string examples_markdown(const nlohmann::ordered_json& record);

}  // namespace octavo::train
