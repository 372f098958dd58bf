// Defines a notation for text grammars and expands them. A grammar is text:
//
//   = rule           begins a rule; its alternatives follow, one per line or between " / ", and earlier ones
//                    are chosen more often
//   fox:foxes        an alternative with two forms; templates use the first, or with .2 the second
//
// Inside an alternative:
//
//   <rule>           an alternative of that rule, expanded       <rule.2>   its second form
//   <x=rule>         the same, remembered until the tale ends    {x} {x.2}  the remembered value of x
//   [a|b|c]          one of these choices, expanded; a choice may be empty
//   @                a or an, by the letter that follows         ^          the next letter is a capital
//   ~                a new paragraph                             +          a new line
//
// A sentence begins with a capital without ^. A remembered value is expanded once and stays the same
// afterwards.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace octavo::tales {

extern const std::string_view kTaleWords;
extern const std::string_view kTaleSentences;
extern const std::string_view kSpokenSentences;

// The rules of all grammar texts, parsed once. A reference to an undefined rule stays unexpanded in the
// output, where tests detect it.
class Grammar {
 public:
  static const Grammar& tales();

  // Returns null if there is no such rule.
  [[nodiscard]] const std::vector<std::string_view>* find(std::string_view rule) const;

 private:
  void add(std::string_view text);
  std::unordered_map<std::string_view, std::vector<std::string_view>> rules_;
};

// Expands templates; a key determines the random choices. The same key and calls give the same text.
class Expander {
 public:
  Expander(const Grammar& grammar, std::uint64_t key) : grammar_(grammar), key_(key) {}

  // Expands the pattern, stores the result as {name}, and returns it.
  const std::string& remember(const std::string& name, std::string_view pattern);

  // Returns the template's text, with articles, capitals and paragraphs.
  std::string expand(std::string_view pattern);

  // Returns a uniformly distributed number below `count`. REQUIRES: count >= 1.
  std::uint64_t below(std::uint64_t count);

 private:
  void append(std::string_view pattern, std::string& out);
  void append_rule(std::string_view reference, std::string& out);
  void append_memory(std::string_view reference, std::string& out);

  const Grammar& grammar_;
  std::uint64_t key_;
  std::uint64_t drawn_ = 0;
  std::unordered_map<std::string, std::string> memory_;
};

}  // namespace octavo::tales
