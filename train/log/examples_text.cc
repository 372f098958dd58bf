// SPDX-License-Identifier: MIT
#include "train/log/examples_text.h"

#include "train/base/word_diff.h"

#include <nlohmann/json.hpp>

#include <string_view>

namespace octavo_train {
namespace {

using json = nlohmann::ordered_json;

// Escapes Markdown as numeric character references, because a backslash does not work inside a table or
// before every character. Line breaks become blanks, because they would end the table.
std::string plain_markdown(std::string_view text) {
  constexpr std::string_view kMarkup = "\\`*_{}[]()<>#+-.!|~&";
  std::string out;
  for (const char c : text) {
    if (kMarkup.find(c) != std::string_view::npos)
      out += "&#" + std::to_string(static_cast<int>(c)) + ';';
    else
      out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

// Returns a text of an example. Bytes that are not UTF-8 become U+FFFD, as in metrics.jsonl, because
// TensorBoard would fail on them.
std::string text_of(const json& example, const char* name) {
  const auto at = example.find(name);
  if (at == example.end() || !at->is_string()) return {};
  return json::parse(at->dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

}  // namespace

std::string examples_markdown(const json& record) {
  const auto examples = record.find("examples");
  if (examples == record.end() || !examples->is_array() || examples->empty()) return {};
  std::string out = "| clip | said | heard |\n|---|---|---|\n";
  for (const json& each : *examples) {
    if (!each.is_object()) continue;
    const std::string reference = text_of(each, "reference"), hypothesis = text_of(each, "hypothesis");
    const WordDiff pair =
        marked(align_words(reference, hypothesis), {"**", "**", "**", "**", plain_markdown});
    out += "| " + plain_markdown(text_of(each, "name")) + " | " + pair.reference + " | " + pair.hypothesis +
           " |\n";
  }
  return out;
}

}  // namespace octavo_train
