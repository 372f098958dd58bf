// Finds keys and the task; see lookup.h. The schema is small, so all searches are linear.
// SPDX-License-Identifier: MIT
#include "train/config/lookup.h"

#include "train/base/edit_distance.h"
#include "train/config/task_config.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace octavo_train {
namespace {

constexpr std::size_t kLongestWord = 64;  // a longer word is similar to no key

// Converts UPPER_CASE, which is a valid spelling of a key, to lower case. Returns Mixed_Case unchanged: it is
// a mistake, and the error shows it as it was written.
std::string canonical_case(std::string_view word) {
  const bool has_lower = std::any_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  return has_lower ? std::string(word) : lower(word);
}

// Returns true for `model`, and for `model.encoder` if a key is model.encoder.d_model.
bool is_section(const Schema& schema, std::string_view word) {
  const std::string start = std::string(word) + ".";
  return std::any_of(schema.keys().begin(), schema.keys().end(),
                     [&](const Key& key) { return !word.empty() && key.path.starts_with(start); });
}

// Returns true if a word in the section may mean the key.
bool is_inside(const Key& key, std::string_view section) {
  const std::string_view top = section.substr(0, section.find('.'));
  const Setting* const setting = key.setting();
  return section.empty() || key.section() == top || (setting != nullptr && setting->also_below == top);
}

std::string path_of(std::string_view section, std::string_view name) {
  return fmt::format("{}{}{}", section, section.empty() ? "" : ".", name);
}

// Returns the name of a word relative to its top section: below model.encoder, d_model is encoder.d_model.
std::string name_inside(std::string_view section, std::string_view word) {
  const auto dot = section.find('.');
  return path_of(dot == std::string_view::npos ? "" : section.substr(dot + 1), word);
}

std::vector<std::string_view> names_of(const Key& key) {
  std::vector<std::string_view> names = {key.name()};
  if (const Setting* const setting = key.setting()) {
    names.insert(names.end(), setting->also.begin(), setting->also.end());
    if (!setting->formerly.empty()) names.push_back(setting->formerly);
  }
  return names;
}

bool has_name(const Key& key, std::string_view name) {
  const std::vector<std::string_view> names = names_of(key);
  return std::ranges::find(names, name) != names.end();
}

// Returns the path of the key that is most similar to the word `written` in the section; empty if none is
// similar. Another section counts as one edit, so a key in the wrong section is found, and a key in the right
// section is preferred.
std::string nearest(const Schema& schema, std::string_view section, std::string_view written) {
  if (written.size() > kLongestWord) return {};
  const std::string name = lower(written);
  const std::string whole = path_of(section, name);
  std::size_t best = std::max<std::size_t>(2, name.size() / 3) + 1;
  std::string found;
  for (const Key& key : schema.keys()) {
    for (const std::string_view known : names_of(key)) {
      const std::size_t elsewhere = !section.empty() && section != key.section() ? 1 : 0;
      // The last part of a name such as encoder.d_model is easily put one level too high or too low.
      const std::string_view last = known.substr(known.rfind('.') + 1);
      const std::size_t moved = last.size() == known.size() ? elsewhere : 1;
      const std::size_t distance =
          std::min({edit_distance(name, known) + elsewhere, edit_distance(whole, key.path),
                    edit_distance(name, key.path), edit_distance(name, last) + moved});
      if (distance >= best || distance >= known.size()) continue;
      best = distance;
      found = key.path;
    }
  }
  return found;
}

Status unknown(const Schema& schema, std::string_view section, std::string_view word, std::string_view name) {
  const std::string written = path_of(section, word.empty() ? "''" : shown(word));
  for (const Key& key : schema.keys()) {
    const bool at_top = section.empty() && !key.section().empty() && word.size() <= kLongestWord;
    if (at_top && edit_distance(word, key.section()) == 1)
      return invalid_error("{}: unknown key; did you mean the section {}?", written, key.section());
  }
  const std::string like = nearest(schema, section, name);
  return invalid_error("{}: unknown key; {}", written,
                       like.empty() ? "docs/config.md lists all keys" : "did you mean " + like + "?");
}

constexpr std::size_t kTask = 0;

// Returns a schema of the two keys that determine the task, so that find_key() finds them in all their
// spellings.
const Schema& choosing() {
  static const Schema table({{"task", Refused{}, {}}, {"model.name", Refused{}, {}}});
  return table;
}

struct Choice {
  const Source* source = nullptr;
  const YamlNode* value = nullptr;

  [[nodiscard]] std::string where() const { return at(*source, value->place); }
};

struct Choices {
  Choice task, model;

  // Records the values of the two keys. Any other key belongs to the task, or is a mistake that is reported
  // later.
  void look(const Source& source, const YamlNode& map, std::string_view section = {}) {
    for (std::size_t i = 0; i < map.keys.size(); ++i) {
      const auto found = find_key(choosing(), section, map.keys[i].text, Suggest::no);
      if (!found.ok()) continue;
      const YamlNode& value = map.items[i];
      if (found->key == kNoKey)
        look(source, value, found->section);
      else if (value.kind == YamlNode::Kind::scalar)
        (found->key == kTask ? task : model) = {&source, &value};
    }
  }
};

// Returns the error of the first key that the task `other` has and the default task does not have, in the
// mapping or in its sections.
Status check_foreign_keys(const Source& source, const YamlNode& map, const TaskConfig& other,
                          const std::string& section = {}) {
  for (std::size_t i = 0; i < map.keys.size(); ++i) {
    const YamlNode& word = map.keys[i];
    const auto there = find_key(schema_of(other), section, word.text, Suggest::no);
    if (!there.ok()) continue;
    if (there->key == kNoKey) {
      RETURN_IF_ERROR(check_foreign_keys(source, map.items[i], other, there->section));
      continue;
    }
    if (find_key(schema_of(declared_tasks().front()), section, word.text, Suggest::no).ok()) continue;
    const std::string about = fmt::format("{}: {}: a key of the task {}", at(source, word.place),
                                          path_of(section, shown(word.text)), other.name);
    if (const auto* const refused = std::get_if<Refused>(&schema_of(other)[there->key].role))
      return unsupported_error("{}: {}", about, refused->reason);
    return invalid_error("{}, but the config names no task and no model; write task: {}", about, other.name);
  }
  return {};
}

}  // namespace

Result<Found> find_key(const Schema& schema, std::string_view section, std::string_view word,
                       Suggest suggest) {
  std::string inside(section);
  std::string name = canonical_case(word);
  const std::string whole = path_of(inside, name);
  if (is_section(schema, whole)) return Found{kNoKey, whole};
  if (inside.empty()) {
    if (const auto dot = name.find('.');
        dot != std::string::npos && is_section(schema, name.substr(0, dot))) {
      inside = name.substr(0, dot);
      name = canonical_case(std::string_view(word).substr(dot + 1));
    }
  }
  const std::string wanted = name_inside(inside, name);
  std::vector<std::size_t> matches;
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const Key& key = schema[i];
    if (has_name(key, wanted) && is_inside(key, inside)) matches.push_back(i);
  }
  if (matches.size() == 1) return Found{matches[0], {}};
  if (matches.empty()) {
    if (suggest == Suggest::no) return Status::invalid("unknown key");
    return section.empty() && !inside.empty()
               ? unknown(schema, inside, std::string_view(word).substr(inside.size() + 1), name)
               : unknown(schema, section, word, name);
  }
  const std::string all = joined(matches, " or ", [&](std::size_t i) { return schema[i].path; });
  return invalid_error("{}: more than one section has this key; write {}", shown(word), all);
}

Result<const TaskConfig*> choose_task(std::span<const ConfigInput> inputs) {
  Choices given;
  for (const ConfigInput& input : inputs)
    for (const YamlNode& map : input.maps) given.look(input.source, map);
  if (given.task.value != nullptr && given.task.value->text != kAutomaticTask) {
    const std::string& name = given.task.value->text;
    if (const TaskConfig* const task = find_task(name)) return task;
    return invalid_error("{}: task: got {}, expected one of {}, {}", given.task.where(), shown(name),
                         kAutomaticTask, joined(declared_tasks(), ", ", &TaskConfig::name));
  }
  if (given.model.value == nullptr) {
    for (const ConfigInput& input : inputs)
      for (const YamlNode& map : input.maps)
        for (const TaskConfig& other : declared_tasks().subspan(1))
          RETURN_IF_ERROR(check_foreign_keys(input.source, map, other));
    return &declared_tasks().front();
  }
  const std::string& model = given.model.value->text;
  for (const TaskConfig& task : declared_tasks())
    if (task.takes(model)) return &task;
  return invalid_error("{}: model.name: got {}, expected {}", given.model.where(), shown(model),
                       joined(declared_tasks(), ", ", &TaskConfig::models));
}

}  // namespace octavo_train
