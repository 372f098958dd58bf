// Parses and expands grammars; see grammar.h.
// SPDX-License-Identifier: MIT
#include "apps/octavo/tales/grammar.h"

#include "train/data/mix.h"

#include <algorithm>
#include <utility>

namespace octavo::tales {
namespace {

constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
constexpr char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
constexpr bool is_vowel(char c) { return std::string_view("AEIOU").find(upper(c)) != std::string_view::npos; }

// Calls use(part) for every part of `text` between separators, empty ones too.
template <class Use>
void for_each_part(std::string_view text, std::string_view separator, Use use) {
  for (;;) {
    const std::size_t end = text.find(separator);
    use(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + separator.size());
  }
}

// Returns the position of the bracket that closes the one at `at`. REQUIRES: it exists.
std::size_t closing(std::string_view text, std::size_t at, char open, char close) {
  int depth = 0;
  for (;; ++at) {
    depth += text[at] == open ? 1 : text[at] == close ? -1 : 0;
    if (depth == 0) return at;
  }
}

// Splits the inside of [a|b|c] into its choices. Brackets may be nested.
std::vector<std::string_view> choices(std::string_view inside) {
  std::vector<std::string_view> out;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < inside.size(); ++i) {
    depth += inside[i] == '[' ? 1 : inside[i] == ']' ? -1 : 0;
    if (inside[i] == '|' && depth == 0) {
      out.push_back(inside.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  out.push_back(inside.substr(begin));
  return out;
}

// Returns the first or second form of fox:foxes. A colon that no letter follows does not separate forms.
std::string_view form(std::string_view text, bool second) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon + 1 == text.size() || !is_letter(text[colon + 1])) return text;
  return second ? text.substr(colon + 1) : text.substr(0, colon);
}

bool take_second(std::string_view& reference) {
  if (!reference.ends_with(".2")) return false;
  reference.remove_suffix(2);
  return true;
}

// Replaces the marks for articles, capitals and paragraphs.
std::string finish(std::string_view draft) {
  std::string out;
  out.reserve(draft.size() + draft.size() / 8);
  bool capital = true;  // capitalize the next letter
  for (std::size_t i = 0; i < draft.size(); ++i) {
    const char c = draft[i];
    if (c == '^') {
      capital = true;
    } else if (c == '~') {
      out += "\n\n";
      capital = true;
    } else if (c == '+') {
      out += '\n';
    } else if (c == '@') {
      const auto next = std::find_if(draft.begin() + static_cast<std::ptrdiff_t>(i), draft.end(), is_letter);
      out += std::exchange(capital, false) ? 'A' : 'a';
      if (next != draft.end() && is_vowel(*next)) out += 'n';
    } else {
      out += is_letter(c) && std::exchange(capital, false) ? upper(c) : c;
      // These end a sentence: `. `, `." `, `! ` and `? `. `?" ` does not, because `he asked` follows it.
      const bool ends = c == '.' || c == '!' || c == '?';
      const bool space = i + 1 < draft.size() && draft[i + 1] == ' ';
      const bool quoted = c == '"' && i > 0 && draft[i - 1] == '.';
      if ((ends || quoted) && space) capital = true;
    }
  }
  return out;
}

}  // namespace

const Grammar& Grammar::tales() {
  static const Grammar grammar = [] {
    Grammar out;
    out.add(kTaleWords);
    out.add(kTaleSentences);
    out.add(kSpokenSentences);
    return out;
  }();
  return grammar;
}

void Grammar::add(std::string_view text) {
  std::vector<std::string_view>* rule = nullptr;
  for_each_part(text, "\n", [&](std::string_view line) {
    if (line.starts_with("= ")) {
      rule = &rules_[line.substr(2)];
    } else if (rule != nullptr && !line.empty()) {
      for_each_part(line, " / ", [&](std::string_view each) { rule->push_back(each); });
    }
  });
}

const std::vector<std::string_view>* Grammar::find(std::string_view rule) const {
  const auto found = rules_.find(rule);
  return found == rules_.end() ? nullptr : &found->second;
}

std::uint64_t Expander::below(std::uint64_t count) {
  return octavo_train::mix(key_ + octavo_train::kStep * ++drawn_) % count;
}

const std::string& Expander::remember(const std::string& name, std::string_view pattern) {
  std::string value;
  append(pattern, value);
  return memory_[name] = std::move(value);
}

std::string Expander::expand(std::string_view pattern) {
  std::string draft;
  append(pattern, draft);
  return finish(draft);
}

void Expander::append(std::string_view pattern, std::string& out) {
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char close = c == '<' ? '>' : c == '[' ? ']' : c == '{' ? '}' : '\0';
    if (close == '\0') {
      out += c;
      continue;
    }
    const std::size_t end = closing(pattern, i, c, close);
    const std::string_view inside = pattern.substr(i + 1, end - i - 1);
    i = end;
    if (c == '<') {
      append_rule(inside, out);
    } else if (c == '{') {
      append_memory(inside, out);
    } else {
      const auto all = choices(inside);
      append(all[below(all.size())], out);
    }
  }
}

void Expander::append_rule(std::string_view reference, std::string& out) {
  const std::size_t equals = reference.find('=');
  const std::string_view name = equals == std::string_view::npos ? "" : reference.substr(0, equals);
  std::string_view rule = equals == std::string_view::npos ? reference : reference.substr(equals + 1);
  const bool second = take_second(rule);
  const auto* const all = grammar_.find(rule);
  if (all == nullptr) {
    out.append("<").append(reference).append(">");
    return;
  }
  // Takes the smaller of two draws, so that earlier alternatives are more frequent, like frequent words of a
  // language.
  const std::string_view chosen = (*all)[std::min(below(all->size()), below(all->size()))];
  if (name.empty()) {
    append(form(chosen, second), out);
    return;
  }
  out += form(remember(std::string(name), chosen), second);
}

void Expander::append_memory(std::string_view reference, std::string& out) {
  std::string_view name = reference;
  const bool second = take_second(name);
  const auto found = memory_.find(std::string(name));
  if (found == memory_.end()) {
    out.append("{").append(reference).append("}");
    return;
  }
  out += form(found->second, second);
}

}  // namespace octavo::tales
