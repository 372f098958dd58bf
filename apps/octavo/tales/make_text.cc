// Chooses the characters of a tale and expands the grammar; see make_text.h.
// SPDX-License-Identifier: MIT
#include "apps/octavo/tales/make_text.h"

#include "apps/octavo/tales/grammar.h"
#include "train/data/mix.h"

#include <algorithm>
#include <vector>

namespace octavo::tales {
namespace {

// Chooses a role's name, which is unique in the tale and whose ending fits the pronoun, and the role's other
// attributes.
void cast(Expander& tale, const std::string& role, std::vector<std::string>& names) {
  const bool she = tale.below(2) == 0;
  std::string name;
  do {
    name = tale.remember(role, she ? "<she_start><she_end>" : "<he_start><he_end>");
  } while (std::find(names.begin(), names.end(), name) != names.end());
  names.push_back(name);
  tale.remember(role + ".kind", "[<person>|<beast>]");
  tale.remember(role + ".trait", "<trait>");
  tale.remember(role + ".he", she ? "she" : "he");
  tale.remember(role + ".him", she ? "her" : "him");
  tale.remember(role + ".his", she ? "her" : "his");
  tale.remember(role + ".self", she ? "herself" : "himself");
}

}  // namespace

std::string TextMaker::next() {
  ++tales_;
  Expander tale(Grammar::tales(), octavo_train::mix(octavo_train::mix(seed_ + octavo_train::kStep) +
                                                    octavo_train::kStep * tales_));
  std::vector<std::string> names;
  for (const char* role : {"h", "f", "o"}) cast(tale, role, names);
  tale.remember("town", "<town>");
  tale.remember("thing", "[<look> <object>|<object>|<object> of <stuff>]");
  return "Tale " + std::to_string(tales_) + ": " + tale.expand("<title>") + "\n\n" + tale.expand("<tale>") +
         "\n\n";
}

std::string make_text(std::int64_t bytes, std::uint64_t seed) {
  const auto size = static_cast<std::size_t>(bytes);
  TextMaker maker(seed);
  std::string out;
  while (out.size() < size) out += maker.next();
  out.resize(size);
  return out;
}

}  // namespace octavo::tales
