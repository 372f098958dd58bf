// Formats the examples of an evaluation as a Markdown table for TensorBoard: the reference next to the
// transcript, with the words that differ in bold.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo_train {

// Formats a record's member `examples`; empty if the record has none. Texts are escaped, so nothing in them
// is markup.
std::string examples_markdown(const nlohmann::ordered_json& record);

}  // namespace octavo_train
