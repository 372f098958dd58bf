// Expands the grammar; see tales.h.
// SPDX-License-Identifier: MIT
#include "apps/octavo/tales/tales.h"

#include "train/data/mix.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

namespace octavo::tales {
namespace {

using octavo_train::kGoldenGamma;
using octavo_train::mix;
using Rules = std::unordered_map<std::string_view, std::vector<std::string_view>>;

constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
constexpr char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

// Splits `text` at separators that are not within brackets.
std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> out;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '[' ? 1 : text[i] == ']' ? -1 : 0;
    if (depth > 0 || !text.substr(i).starts_with(separator)) continue;
    out.push_back(text.substr(begin, i - begin));
    begin = i + separator.size();
  }
  out.push_back(text.substr(begin));
  return out;
}

const Rules& rules() {
  static const Rules rules = [] {
    Rules out;
    std::vector<std::string_view>* rule = nullptr;
    for (std::string_view line : split(kGrammar, "\n")) {
      if (line.empty()) continue;
      if (const std::size_t equals = line.find(" ="); equals != std::string_view::npos) {
        rule = &out[line.substr(0, equals)];
        line.remove_prefix(std::min(equals + 3, line.size()));
      }
      if (line.empty()) continue;
      for (const std::string_view each : split(line, " / ")) rule->push_back(each);
    }
    return out;
  }();
  return rules;
}

// Replaces the marks for articles and paragraphs, and begins sentences and quotes with capitals.
std::string finish(std::string_view draft) {
  std::string out;
  bool capital = true;  // capitalize the next letter
  for (std::size_t i = 0; i < draft.size(); ++i) {
    const char c = draft[i], before = i > 0 ? draft[i - 1] : ' ';
    if (c == '~') {
      out += "\n\n";
    } else if (c == '@') {
      out += std::exchange(capital, false) ? 'A' : 'a';
      const char next =
          *std::find_if(draft.begin() + static_cast<std::ptrdiff_t>(i), draft.end() - 1, is_letter);
      if (std::string_view("AEIOU").find(upper(next)) != std::string_view::npos) out += 'n';
    } else {
      out += is_letter(c) && std::exchange(capital, false) ? upper(c) : c;
    }
    // `?" ` ends no sentence, because `he asked` may follow it.
    const bool ends = c == '.' || c == '!' || c == '?' || (c == '"' && before == '.');
    const bool space = i + 1 < draft.size() && draft[i + 1] == ' ';
    const bool opens = c == '"' && (before == ' ' || before == '~');
    if (c == '~' || opens || (ends && space)) capital = true;
  }
  return out;
}

// Expands patterns. The key determines the random choices: the same key and calls give the same text.
class Expander {
 public:
  Expander(std::uint64_t seed, std::uint64_t number)
      : key_(mix(mix(seed + kGoldenGamma) + kGoldenGamma * number)) {}

  std::uint64_t below(std::uint64_t count) { return mix(key_ + kGoldenGamma * ++drawn_) % count; }

  // Expands the pattern, stores the result as <name>, and returns it.
  const std::string& remember(const std::string& name, std::string_view pattern) {
    std::string value;
    append(pattern, value);
    return memory_[name] = std::move(value);
  }

  std::string expand(std::string_view pattern) {
    std::string draft;
    append(pattern, draft);
    return finish(draft);
  }

 private:
  void append(std::string_view pattern, std::string& out) {
    while (!pattern.empty()) {
      const char c = pattern.front();
      const std::size_t end = c == '<' ? pattern.find('>') : c == '[' ? pattern.find(']') : 0;
      const std::string_view inside = pattern.substr(1, std::max<std::size_t>(end, 1) - 1);
      if (c == '<') {
        append_rule(inside, out);
      } else if (c == '[') {
        const auto choices = split(inside, "|");
        append(choices[below(choices.size())], out);
      } else {
        out += c;
      }
      pattern.remove_prefix(end + 1);
    }
  }

  // Appends <name>, <rule>, or <name=rule>, which also stores the name. A rule that is not defined stays in
  // the output, where tests detect it.
  void append_rule(std::string_view reference, std::string& out) {
    if (const auto known = memory_.find(std::string(reference)); known != memory_.end()) {
      out += known->second;
      return;
    }
    const std::size_t equals = reference.find('=');
    const auto rule = rules().find(reference.substr(equals == std::string_view::npos ? 0 : equals + 1));
    if (rule == rules().end()) {
      out.append("<").append(reference).append(">");
      return;
    }
    // Takes the smaller of two draws, so that earlier alternatives are more frequent, like frequent words of
    // a language.
    const auto& all = rule->second;
    const std::string_view chosen = all[std::min(below(all.size()), below(all.size()))];
    if (equals == std::string_view::npos)
      append(chosen, out);
    else
      out += remember(std::string(reference.substr(0, equals)), chosen);
  }

  std::uint64_t key_, drawn_ = 0;
  std::unordered_map<std::string, std::string> memory_;
};

// Chooses a role's name, which is unique in the tale and whose ending fits the pronoun, and the role's other
// attributes.
void cast(Expander& tale, const std::string& role, std::vector<std::string>& names) {
  const bool she = tale.below(2) == 0;
  std::string name;
  do {
    name = tale.remember(role, she ? "<she_name>" : "<he_name>");
  } while (std::ranges::find(names, name) != names.end());
  names.push_back(name);
  tale.remember(role + ".kind", "[<person>|<beast>]");
  tale.remember(role + ".trait", "<trait>");
  tale.remember(role + ".he", she ? "she" : "he");
  tale.remember(role + ".him", she ? "her" : "him");
  tale.remember(role + ".his", she ? "her" : "his");
}

}  // namespace

std::string TextMaker::next() {
  Expander tale(seed_, ++tales_);
  std::vector<std::string> names;
  for (const char* role : {"h", "f", "o"}) cast(tale, role, names);  // hero, friend, stranger
  tale.remember("home", "<town>");
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

std::string SentenceMaker::next() {
  std::string out = Expander(seed_, ++sentences_).expand("<spoken>");
  out.front() = static_cast<char>(out.front() - 'A' + 'a');
  return out;
}

}  // namespace octavo::tales
