// SPDX-License-Identifier: MIT
#include "train/config/choose_task.h"

#include "train/config/lookup.h"
#include "train/config/task_config.h"

#include <optional>
#include <string>

namespace octavo_train {
namespace {

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

  [[nodiscard]] std::string place() const { return at(*source, value->place) + ": "; }
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
      if (found->key == kNoKey) {
        look(source, value, found->section);
      } else if (value.kind == YamlNode::Kind::scalar) {
        (found->key == kTask ? task : model) = {&source, &value};
      }
    }
  }
};

// A key that the default task does not have, but another task has.
struct Stranger {
  const Source* source = nullptr;
  const YamlNode* word = nullptr;
  std::string section;
  std::string_view task;
  const Refused* refused = nullptr;  // set if the other task has the key only to reject it

  [[nodiscard]] Status error() const {
    const std::string about = at(*source, word->place) + ": " + (section.empty() ? "" : section + ".") +
                              shown(word->text) + ": a key of the task " + std::string(task);
    if (refused != nullptr) return Status::unsupported(about + ": " + std::string(refused->reason));
    return Status::invalid(about +
                           ", but the config names no task and no model; write task: " + std::string(task));
  }
};

// Returns the first such key, in the mapping or in its sections.
std::optional<Stranger> find_stranger(const Source& source, const YamlNode& map, const TaskConfig& other,
                                      const std::string& section = {}) {
  for (std::size_t i = 0; i < map.keys.size(); ++i) {
    const YamlNode& word = map.keys[i];
    const auto there = find_key(schema_of(other), section, word.text, Suggest::no);
    if (!there.ok()) continue;
    if (there->key != kNoKey) {
      if (!find_key(schema_of(declared_tasks().front()), section, word.text, Suggest::no).ok())
        return Stranger{&source, &word, section, other.name,
                        std::get_if<Refused>(&schema_of(other)[there->key].role)};
    } else if (auto found = find_stranger(source, map.items[i], other, there->section)) {
      return found;
    }
  }
  return std::nullopt;
}

std::string names() {
  std::string out;
  for (const TaskConfig& task : declared_tasks()) out += (out.empty() ? "" : ", ") + std::string(task.name);
  return out;
}

std::string model_names() {
  std::string out;
  for (const TaskConfig& task : declared_tasks()) out += (out.empty() ? "" : ", ") + std::string(task.models);
  return out;
}

}  // namespace

Result<const TaskConfig*> choose_task(const std::array<Words, 2>& levels) {
  Choices given;
  for (const Words& level : levels) {
    for (const YamlNode& map : level.maps) given.look(*level.source, map);
  }
  if (given.task.value != nullptr && given.task.value->text != kAutomaticTask) {
    const std::string& name = given.task.value->text;
    if (const TaskConfig* const task = find_task(name)) return task;
    return Status::invalid(given.task.place() + "task: got " + shown(name) + ", expected one of " +
                           kAutomaticTask + ", " + names());
  }
  if (given.model.value == nullptr) {
    for (const Words& level : levels) {
      for (const YamlNode& map : level.maps) {
        for (const TaskConfig& other : declared_tasks().subspan(1)) {
          if (const auto stranger = find_stranger(*level.source, map, other)) return stranger->error();
        }
      }
    }
    return &declared_tasks().front();
  }
  const std::string& model = given.model.value->text;
  for (const TaskConfig& task : declared_tasks()) {
    if (task.takes(model)) return &task;
  }
  return Status::invalid(given.model.place() + "model.name: got " + shown(model) + ", expected " +
                         model_names());
}

}  // namespace octavo_train
