// Merging default, file and command line. First the task is found, for it says which keys there are: see
// choose_task. Then each level is collected: which key each word means, and whether a key is given twice.
// What is not built in is refused. Then each level is applied: first the settings, then the switches. A
// switch is another spelling of a setting and must not contradict a setting of its level.
// SPDX-License-Identifier: MIT
#include "train/config/config.h"

#include "train/config/assignments.h"
#include "train/config/checks.h"
#include "train/config/choose_task.h"
#include "train/config/lookup.h"
#include "train/config/node.h"
#include "train/config/paths.h"
#include "train/config/task_config.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

namespace octavo::train {
namespace {

struct Assignment {
  std::size_t key;
  std::string word;  // as written
  YamlNode value;
  TextPlace place;  // of the word
};

Origin origin_of(const Source& source, TextPlace place) {
  if (!source.is_file) return {.level = Origin::Level::command_line};
  return {.level = Origin::Level::file, .file = source.name, .line = place.line, .column = place.column};
}

// An error at a place: `run.yaml:7:3: ` before the message.
Status error_at(const Source& source, TextPlace place, const Status& status) {
  return {status.code(), at(source, place) + ": " + status.message()};
}

std::string advice(const Type& type, const YamlNode& value) {
  const std::string text = type.advice ? type.advice(value) : std::string();
  return text.empty() ? text : "; " + text;
}

// One level of precedence: what a file, or all words of a command line, assign.
class Level {
 public:
  Level(const Schema& schema, Source source) : schema_(schema), source_(std::move(source)) {}

  Status collect(const YamlNode& map, std::string_view section = {}) {
    for (std::size_t i = 0; i < map.keys.size(); ++i) {
      const YamlNode& word = map.keys[i];
      const YamlNode& value = map.items[i];
      auto found = find_key(schema_, section, word.text);
      if (!found.ok()) return error_at(source_, word.place, found.status());
      if (found->key != kNoKey) {
        if (Status status = add({found->key, word.text, value, word.place}); !status.ok()) return status;
      } else if (Status status = collect_section(found->section, word, value); !status.ok()) {
        return status;
      }
    }
    return {};
  }

  [[nodiscard]] const std::vector<Assignment>& given() const { return given_; }
  // Null where this level does not give the key.
  [[nodiscard]] const Assignment* find(std::size_t key) const {
    const auto found = std::ranges::find(given_, key, &Assignment::key);
    return found == given_.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::string place(const Assignment& one) const { return at(source_, one.place); }

  Status apply(Config& config) const {
    for (const Assignment& one : given_) {
      if (Status status = apply_setting(one, config); !status.ok()) return status;
    }
    for (const bool wanted : {true, false}) {
      for (const Assignment& one : given_) {
        if (Status status = apply_switch(one, wanted, config); !status.ok()) return status;
      }
    }
    return {};
  }

 private:
  Status collect_section(const std::string& section, const YamlNode& word, const YamlNode& value) {
    if (value.kind == YamlNode::Kind::map) return collect(value, section);
    if (value.kind == YamlNode::Kind::null) return {};
    return Status::invalid(at(source_, value.place) + ": " + shown(word.text) + ": got " + shown(value) +
                           ", expected a mapping: this is a section, its keys go below it");
  }

  // In a file a second value is a mistake. On a command line the last value is used.
  Status add(Assignment one) {
    const auto same = std::ranges::find(given_, one.key, &Assignment::key);
    if (same != given_.end() && source_.is_file) {
      return Status::invalid(at(source_, one.place) + ": " + shown(one.word) + ": given twice; " +
                             std::string(schema_[one.key].path) + " has a value at " +
                             at(source_, same->place) + ": remove one");
    }
    if (same != given_.end()) given_.erase(same);
    given_.push_back(std::move(one));
    return {};
  }

  [[nodiscard]] Status error_in_part(const Key& key, const Problem& problem) const {
    return Status::invalid(at(source_, problem.place) + ": " + std::string(key.path) + problem.part + ": " +
                           problem.message);
  }

  Status apply_setting(const Assignment& one, Config& config) const {
    const Key& key = schema_[one.key];
    if (const Setting* setting = key.setting()) {
      if (!setting->type.set(one.value, config.settings)) {
        if (setting->type.problem) return error_in_part(key, setting->type.problem(one.value));
        return Status::invalid(at(source_, one.value.place) + ": " + std::string(key.path) + ": got " +
                               shown(one.value) + ", expected " + setting->type.expected +
                               advice(setting->type, one.value));
      }
      config.origins[one.key] = origin_of(source_, one.place);
    }
    return {};
  }

  Status apply_switch(const Assignment& one, bool wanted, Config& config) const {
    const Switch* spelling = std::get_if<Switch>(&schema_[one.key].role);
    if (spelling == nullptr) return {};
    const auto is_on = flag().read(one.value);
    if (!is_on) {
      return Status::invalid(at(source_, one.value.place) + ": " + shown(one.word) + ": got " +
                             shown(one.value) + ", expected " + flag().expected);
    }
    if (*is_on != wanted) return {};

    const std::size_t target = schema_.index(spelling->target);
    const Type& type = schema_[target].setting()->type;
    const bool has_value = type.show(config.settings) == spelling->value;
    // This level has set it already, by the key itself or by another switch. Both must agree.
    const bool is_here = config.origins[target].level == origin_of(source_, one.place).level;
    if (is_here && has_value != *is_on) {
      const Origin& other = config.origins[target];
      return Status::invalid(at(source_, one.place) + ": " + shown(one.word) + ": got " + shown(one.value) +
                             ", but " + std::string(spelling->target) + " is " + type.show(config.settings) +
                             " (" + other.place() + "); remove one of them");
    }
    if (is_here || (!*is_on && !has_value)) return {};
    const YamlNode value{.kind = YamlNode::Kind::scalar,
                         .text = std::string(*is_on ? spelling->value : spelling->otherwise),
                         .plain = true,
                         .place = one.place};
    if (!type.set(value, config.settings)) {
      return Status::failed("schema: " + std::string(spelling->target) + " does not take " + value.text);
    }
    config.origins[target] = origin_of(source_, one.place);
    config.origins[target].via = schema_[one.key].name();
    return {};
  }

  const Schema& schema_;
  Source source_;
  std::vector<Assignment> given_;
};

bool asks(const Assignment& one) {
  return one.value.kind != YamlNode::Kind::null && flag().read(one.value) != false;
}

// Keys of what is not built in. This comes before the values of the others are read: a file of another tool
// has many that mean nothing here.
Status check_refused(const Schema& schema, const Level& file, const Level& words) {
  const auto last = [&](std::size_t key) {
    const Assignment* const over = words.find(key);
    return over != nullptr ? over : file.find(key);
  };
  for (const Level* level : {&file, &words}) {
    for (const Assignment& one : level->given()) {
      const Refused* const refused = std::get_if<Refused>(&schema[one.key].role);
      if (refused == nullptr || last(one.key) != &one || !asks(one)) continue;
      const Assignment* const whole = refused->of.empty() ? nullptr : last(schema.index(refused->of));
      if (whole != nullptr && !asks(*whole)) continue;
      return Status::unsupported(level->place(one) + ": " + shown(one.word) + ": " +
                                 std::string(refused->reason));
    }
  }
  return {};
}

Result<Config> defaults(const TaskConfig& task) {
  Config config;
  config.schema = &schema_of(task);
  config.origins.resize(config.schema->size());
  const Source source{"schema.cc", false};
  for (const Key& key : config.schema->keys()) {
    const Setting* setting = key.setting();
    if (setting == nullptr) continue;
    auto value = read_yaml(setting->fallback, source);
    if (!value.ok()) return value.status();
    if (!setting->type.set(*value, config.settings)) {
      return Status::failed("schema: " + std::string(key.path) + " does not take its default");
    }
  }
  return config;
}

// The task's own defaults, where the config gives no values.
Status apply_recipe(const TaskConfig& task, Config& config) {
  if (task.recipe == nullptr) return {};
  for (const Default& each : task.recipe(config)) {
    Origin& origin = config.origins.at(config.schema->index(each.path));
    if (origin.level != Origin::Level::standard) continue;
    auto value = read_yaml(each.value, {std::string(task.name), false});
    if (!value.ok()) return value.status();
    if (!config.schema->setting(each.path)->type.set(*value, config.settings))
      return Status::failed("schema: " + std::string(each.path) + " does not take " + each.value);
    origin.via = kByRecipe;
  }
  return {};
}

// A file or a command line as mappings, before anything is known of their keys.
struct Given {
  Source source;
  std::vector<YamlNode> maps;
};

Result<Given> given_by_file(std::string_view text, std::string_view name) {
  Given out{{std::string(name), true}, {}};
  auto root =
      has_assignments(text) ? read_yaml(assignments_as_yaml(text), out.source) : read_yaml(text, out.source);
  if (!root.ok()) return root.status();
  if (root->kind != YamlNode::Kind::map && root->kind != YamlNode::Kind::null) {
    return Status::invalid(at(out.source, root->place) + ": got " + shown(*root) +
                           ", expected lines of `key: value`");
  }
  out.maps.push_back(std::move(*root));
  return out;
}

Result<Given> given_by_words(std::span<const std::string> words) {
  Given out{{"command line", false}, {}};
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Status::invalid(out.source.name + ": " + shown(word) +
                             ": expected key=value, such as learning_rate=3e-4");
    }
    auto value = read_yaml(std::string_view(word).substr(equals + 1),
                           {out.source.name + ": " + shown(word.substr(0, equals)), false});
    if (!value.ok()) return value.status();
    YamlNode pair{.kind = YamlNode::Kind::map};
    pair.keys.push_back({.kind = YamlNode::Kind::scalar, .text = word.substr(0, equals), .plain = true});
    pair.items.push_back(std::move(*value));
    out.maps.push_back(std::move(pair));
  }
  return out;
}

Result<Level> collected(const Given& given, const Schema& schema) {
  Level level(schema, given.source);
  for (const YamlNode& map : given.maps) {
    if (Status status = level.collect(map); !status.ok()) return status;
  }
  return level;
}

Result<std::string> read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) return Status::failed(path + ": cannot be opened: " + std::strerror(errno));
  std::string text(kMaxConfigBytes + 1, '\0');  // one more than allowed: read_yaml then says so
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return Status::failed(path + ": cannot be read: " + std::strerror(errno));
  return text;
}

// A part of a file's name, for any file system and shell.
std::string plain_name(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"') continue;  // of YAML
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("._=+-").find(c) != std::string_view::npos;
    out += plain ? c : '_';
  }
  return out;
}

std::string automatic_folder(std::string_view path, const Config& config) {
  constexpr std::size_t kLongest = 120;
  std::string_view stem = path.substr(path.rfind('/') + 1);
  if (const auto dot = stem.rfind('.'); dot != std::string_view::npos && dot > 0) stem = stem.substr(0, dot);
  std::string name = plain_name(stem);
  // Who goes on in spite of changes means the run as the file has it.
  for (std::size_t i = 0;
       !config.settings.training.resume_from_checkpoint.changed && i < config.schema->size(); ++i) {
    const Key& key = (*config.schema)[i];
    if (config.origins[i].level != Origin::Level::command_line) continue;
    if (key.makes_another_run() || key.effect == Effect::content)
      name += "-" + plain_name(std::string(key.name()) + "=" + key.setting()->type.show(config.settings));
  }
  if (name.size() > kLongest) {
    std::uint32_t hash = 2166136261U;  // FNV-1a: the same name on every machine
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
    name = name.substr(0, kLongest) + "-" + std::to_string(hash);
  }
  return "runs/" + name;
}

}  // namespace

std::string Origin::text() const {
  const std::string where = level == Level::standard ? "default"
                            : level == Level::file   ? file + ":" + std::to_string(line)
                                                     : "command line";
  return via.empty() ? where : where + " (" + via + ")";
}

std::string Origin::place() const {
  if (level != Level::file) return text();
  const std::string where = file + ":" + std::to_string(line) + ":" + std::to_string(column);
  return via.empty() ? where : where + " (" + via + ")";
}

const Origin& Config::origin(std::string_view path) const { return origins.at(schema->index(path)); }

Result<Config> parse(std::string_view text, std::string_view name, std::span<const std::string> overrides) {
  const auto file = given_by_file(text, name);
  if (!file.ok()) return file.status();
  const auto words = given_by_words(overrides);
  if (!words.ok()) return words.status();
  const auto task = choose_task({{{&file->source, file->maps}, {&words->source, words->maps}}});
  if (!task.ok()) return task.status();
  Result<Config> config = defaults(**task);
  if (!config.ok()) return config;
  const auto low = collected(*file, *config->schema);
  if (!low.ok()) return low.status();
  const auto high = collected(*words, *config->schema);
  if (!high.ok()) return high.status();
  if (Status status = check_refused(*config->schema, *low, *high); !status.ok()) return status;
  for (const Level* level : {&*low, &*high}) {
    if (Status status = level->apply(*config); !status.ok()) return status;
  }
  config->settings.task = (*task)->name;
  if (Status status = apply_recipe(**task, *config); !status.ok()) return status;
  if (Status status = settle_and_check(*config); !status.ok()) return status;
  return config;
}

Result<Config> load(const std::string& path, std::span<const std::string> overrides) {
  auto text = read_file(path);
  if (!text.ok()) return text.status();
  auto config = parse(*text, path, overrides);
  if (!config.ok()) return config;
  if (config->settings.output_dir == kAutomaticFolder)
    config->settings.output_dir = automatic_folder(path, *config);
  resolve_paths(*config, path);
  return config;
}

}  // namespace octavo::train
