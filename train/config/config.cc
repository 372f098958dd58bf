// Merges defaults, file and command line. First the task is determined, because it defines the keys
// (lookup.h). Then the assignments of each level are collected: the key of each word is looked up, and a
// key that is given twice in a file is an error. Keys of features that are not built in are rejected. Then
// each level is applied: first the settings, then the switches. A switch is another spelling of a setting and
// must not contradict a setting of its level. The values of a DeepSpeed file belong to the level that names
// the file, and must not contradict it either.
// SPDX-License-Identifier: MIT
#include "train/config/config.h"

#include "train/config/checks.h"
#include "train/config/deepspeed.h"
#include "train/config/lookup.h"
#include "train/config/paths.h"
#include "train/config/task_config.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <utility>

namespace octavo_train {
namespace {

struct Assignment {
  std::size_t key;
  std::string word;  // as written
  YamlNode value;
  TextPlace place;       // place of the word
  std::string via = {};  // the key in another tool's file, if the value is from there
};

std::string advice(const Type& type, const YamlNode& value) {
  const std::string text = type.advice ? type.advice(value) : std::string();
  return text.empty() ? text : "; " + text;
}

// One level of precedence: the assignments of a file, or of all words of a command line.
class Level {
 public:
  Level(const Schema& schema, Source source, Origin::Level rank)
      : schema_(schema), source_(std::move(source)), rank_(rank) {}

  Status collect(const YamlNode& map, std::string_view section = {}) {
    for (std::size_t i = 0; i < map.keys.size(); ++i) {
      const YamlNode& word = map.keys[i];
      const YamlNode& value = map.items[i];
      auto found = find_key(schema_, section, word.text);
      if (!found.ok()) return with_context(at(source_, word.place), found.status());
      if (found->key != kNoKey)
        RETURN_IF_ERROR(add({found->key, word.text, value, word.place}));
      else
        RETURN_IF_ERROR(collect_section(found->section, word, value));
    }
    return {};
  }

  Status collect(const DeepSpeedSettings& given) {
    for (const DeepSpeedValue& one : given.values)
      RETURN_IF_ERROR(add({schema_.index(one.key), one.from, one.value, one.place, one.from}));
    return {};
  }

  [[nodiscard]] const std::vector<Assignment>& given() const { return given_; }
  [[nodiscard]] const Source& source() const { return source_; }
  [[nodiscard]] Origin::Level rank() const { return rank_; }
  // Returns null if this level does not give the key.
  [[nodiscard]] const Assignment* find(std::size_t key) const {
    const auto found = std::ranges::find(given_, key, &Assignment::key);
    return found == given_.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::string place(const Assignment& one) const { return at(source_, one.place); }

  Status apply(Config& config) const {
    for (const Assignment& one : given_) RETURN_IF_ERROR(apply_setting(one, config));
    for (const bool wanted : {true, false})
      for (const Assignment& one : given_) RETURN_IF_ERROR(apply_switch(one, wanted, config));
    return {};
  }

 private:
  Status collect_section(const std::string& section, const YamlNode& word, const YamlNode& value) {
    if (value.kind == YamlNode::Kind::map) return collect(value, section);
    if (value.kind == YamlNode::Kind::null) return {};
    return invalid_error("{}: {}: got {}, expected a mapping: this is a section, its keys go below it",
                         at(source_, value.place), shown(word.text), shown(value));
  }

  // In a file a second value is a mistake. On a command line the last value is used.
  Status add(Assignment one) {
    const auto same = std::ranges::find(given_, one.key, &Assignment::key);
    if (same != given_.end() && source_.is_file) {
      return invalid_error("{}: {}: given twice; {} has a value at {}: remove one", at(source_, one.place),
                           shown(one.word), schema_[one.key].path, at(source_, same->place));
    }
    if (same != given_.end()) given_.erase(same);
    given_.push_back(std::move(one));
    return {};
  }

  [[nodiscard]] Origin origin_of(const Assignment& one) const {
    if (!source_.is_file) return {.level = rank_, .via = one.via};
    return {rank_, source_.name, one.place.line, one.place.column, one.via};
  }

  // Returns the name under which the user gave the key.
  [[nodiscard]] static std::string shown_key(const Assignment& one, const Key& key) {
    return one.via.empty() ? std::string(key.path) : fmt::format("{} ({})", one.via, key.path);
  }

  // Returns true if this level has already given the key, or a switch for it.
  [[nodiscard]] bool is_set_here(std::size_t key, const Config& config) const {
    return config.origins[key].level == rank_;
  }

  [[nodiscard]] Status contradiction(const Assignment& one, const std::string& given, std::string_view target,
                                     const std::string& value, const Origin& other) const {
    return invalid_error("{}: {}: got {}, but {} is {} ({}); remove one of them", at(source_, one.place),
                         given, shown(one.value), target, value, other.where());
  }

  [[nodiscard]] Status error_in_part(const Key& key, const Problem& problem) const {
    return invalid_error("{}: {}{}: {}", at(source_, problem.place), key.path, problem.part, problem.message);
  }

  Status apply_setting(const Assignment& one, Config& config) const {
    const Key& key = schema_[one.key];
    const Setting* const setting = key.setting();
    if (setting == nullptr) return {};
    const std::string before = setting->type.show(config.settings);
    if (!setting->type.set(one.value, config.settings)) {
      if (setting->type.problem) return error_in_part(key, setting->type.problem(one.value));
      return invalid_error("{}: {}: got {}, expected {}{}", at(source_, one.value.place), shown_key(one, key),
                           shown(one.value), setting->type.expected, advice(setting->type, one.value));
    }
    if (is_set_here(one.key, config) && setting->type.show(config.settings) != before)
      return contradiction(one, shown_key(one, key), key.path, before, config.origins[one.key]);
    config.origins[one.key] = origin_of(one);
    return {};
  }

  Status apply_switch(const Assignment& one, bool wanted, Config& config) const {
    const Switch* spelling = std::get_if<Switch>(&schema_[one.key].role);
    if (spelling == nullptr) return {};
    const auto is_on = flag().read(one.value);
    if (!is_on)
      return invalid_error("{}: {}: got {}, expected {}", at(source_, one.value.place), shown(one.word),
                           shown(one.value), flag().expected);
    if (*is_on != wanted) return {};

    const std::size_t target = schema_.index(spelling->target);
    const Type& type = schema_[target].setting()->type;
    const bool has_value = spelling->agrees != nullptr ? spelling->agrees(config.settings)
                                                       : type.show(config.settings) == spelling->value;
    // If this level has already set the target, by its key or by another switch, both must agree.
    const bool has_it = is_set_here(target, config);
    if (has_it && has_value != *is_on) {
      return contradiction(one, shown(one.word), spelling->target, type.show(config.settings),
                           config.origins[target]);
    }
    if (has_it || (!*is_on && !has_value)) return {};
    const bool is_given = config.origins[target].level != Origin::Level::standard;
    if (spelling->agrees != nullptr && is_given && has_value == *is_on) return {};
    RETURN_IF_ERROR(
        set_value(schema_[target], *is_on ? spelling->value : spelling->otherwise, config.settings));
    config.origins[target] = origin_of(one);
    if (one.via.empty()) config.origins[target].via = schema_[one.key].name();
    return {};
  }

  const Schema& schema_;
  Source source_;
  Origin::Level rank_;
  std::vector<Assignment> given_;
};

bool requests(const Assignment& one) {
  return one.value.kind != YamlNode::Kind::null && flag().read(one.value) != false;
}

// Rejects keys of features that are not built in. This check precedes the reading of other values, because
// another tool's file has many values that have no meaning here.
Status check_refused(const Schema& schema, const Level& file, const Level& words) {
  const auto last = [&](std::size_t key) {
    const Assignment* const over = words.find(key);
    return over != nullptr ? over : file.find(key);
  };
  for (const Level* level : {&file, &words}) {
    for (const Assignment& one : level->given()) {
      const Refused* const refused = std::get_if<Refused>(&schema[one.key].role);
      if (refused == nullptr || last(one.key) != &one || !requests(one)) continue;
      const Assignment* const parent = refused->of.empty() ? nullptr : last(schema.index(refused->of));
      if (parent != nullptr && !requests(*parent)) continue;
      return unsupported_error("{}: {}: {}", level->place(one), shown(one.word), refused->reason);
    }
  }
  return {};
}

Result<Config> defaults(const TaskConfig& task) {
  Config config;
  config.schema = &schema_of(task);
  config.origins.resize(config.schema->size());
  for (const Key& key : config.schema->keys())
    if (key.setting() != nullptr) RETURN_IF_ERROR(set_value(key, key.setting()->fallback, config.settings));
  return config;
}

// Applies the task's own defaults to keys that the config does not give.
Status apply_recipe(const TaskConfig& task, Config& config) {
  if (task.recipe == nullptr) return {};
  for (const Default& each : task.recipe(config)) {
    const std::size_t key = config.schema->index(each.path);
    Origin& origin = config.origins.at(key);
    if (origin.level != Origin::Level::standard) continue;
    RETURN_IF_ERROR(set_value((*config.schema)[key], each.value, config.settings));
    origin.via = kByRecipe;
  }
  return {};
}

Result<ConfigInput> given_by_file(std::string_view text, std::string_view name) {
  ConfigInput out{{std::string(name), true}, {}};
  ASSIGN_OR_RETURN(auto root, read_config_text(text, out.source));
  if (root.kind != YamlNode::Kind::map && root.kind != YamlNode::Kind::null)
    return invalid_error("{}: got {}, expected lines of `key: value`", at(out.source, root.place),
                         shown(root));
  out.maps.push_back(std::move(root));
  return out;
}

// Returns true if the value is empty or null as the user wrote it.
bool writes_null(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return true;
  const std::string_view value = text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
  return value == "null" || value == "Null" || value == "NULL" || value == "~";
}

Result<ConfigInput> given_by_words(std::span<const std::string> words) {
  ConfigInput out{{"command line", false}, {}};
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    if (equals == std::string::npos || equals == 0)
      return invalid_error("{}: {}: expected key=value, such as learning_rate=3e-4", out.source.name,
                           shown(word));
    const std::string_view text = std::string_view(word).substr(equals + 1);
    const std::string where = fmt::format("{}: {}", out.source.name, shown(word.substr(0, equals)));
    ASSIGN_OR_RETURN(auto value, read_yaml(text, {where, false}));
    // The value is a document marker, a directive or a comment.
    if (value.kind == YamlNode::Kind::null && !writes_null(text)) {
      return invalid_error(
          "{}: got {}, which has no value in YAML; put it in quotes inside the quotes of the shell, or write "
          "null",
          where, shown(text));
    }
    YamlNode pair{.kind = YamlNode::Kind::map};
    pair.keys.push_back({.kind = YamlNode::Kind::scalar, .text = word.substr(0, equals), .plain = true});
    pair.items.push_back(std::move(value));
    out.maps.push_back(std::move(pair));
  }
  return out;
}

Result<Level> collected(const ConfigInput& given, const Schema& schema) {
  Level level(schema, given.source, given.source.is_file ? Origin::Level::file : Origin::Level::command_line);
  for (const YamlNode& map : given.maps) RETURN_IF_ERROR(level.collect(map));
  return level;
}

Result<std::string> read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) return failed_error("{}: cannot be opened: {}", path, std::strerror(errno));
  std::string text(kMaxConfigBytes + 1, '\0');  // one more than allowed: read_yaml() reports it
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return failed_error("{}: cannot be read: {}", path, std::strerror(errno));
  return text;
}

Result<DeepSpeedSettings> read_named(const Assignment& one, const Level& level, Source& source) {
  if (one.value.kind == YamlNode::Kind::map) return read_deepspeed(one.value, source);
  const bool in_file = source.is_file;
  const std::string path = in_file ? found_path(one.value.text, source.name) : one.value.text;
  auto text = read_file(path);
  if (!text.ok()) {
    return failed_error("{}: training.deepspeed: {}{}", level.place(one), text.status().message(),
                        looked_at(one.value.text, in_file ? source.name : ""));
  }
  source = {path, true};
  return parse_deepspeed(*text, source);
}

// Applies the values of the DeepSpeed file that a level names, if it names one.
Status apply_deepspeed(const Level& level, Config& config, bool& offloads_gradients) {
  const Assignment* const one = level.find(config.schema->index("training.deepspeed"));
  if (one == nullptr || !requests(*one)) return {};
  Source source = level.source();
  ASSIGN_OR_RETURN(auto given, read_named(*one, level, source));
  Level values(*config.schema, source, level.rank());
  RETURN_IF_ERROR(values.collect(given));
  config.notes = std::move(given.notes);
  offloads_gradients = given.offloads_gradients;
  return values.apply(config);
}

// Sets offload_gradients, because DeepSpeed's ZeRO-2 with its optimizer on the CPU keeps gradients in host
// memory too. Changes nothing if offload_gradients is given, or if a given `parallel` or `offload` replaces
// the file's value.
void offload_gradients_too(Config& config) {
  TrainingSettings& training = config.settings.training;
  const Origin& offload = config.origin("training.offload");
  Origin& gradients = config.origin("training.offload_gradients");
  if (training.offload != Offload::host || training.parallel != Parallel::zero2) return;
  if (gradients.level != Origin::Level::standard) return;
  if (const std::int64_t ranks = training.num_gpus.value_or(1); ranks > 1) {
    config.notes.push_back(
        fmt::format("{}: gradients stay on the GPUs, because {} ranks sum them there (parallel: zero2 keeps "
                    "a part of the sums on each)",
                    offload.where(), ranks));
    return;
  }
  training.offload_gradients = true;
  gradients = offload;
}

// Sets offload: auto for a paged optimizer of bitsandbytes, which keeps its states in host memory, unless the
// config gives offload.
void offload_paged_states(const Level& level, Config& config) {
  const Assignment* const one = level.find(config.schema->index("training.optimizer"));
  const Origin& optimizer = config.origin("training.optimizer");
  const bool counts = one != nullptr && optimizer.level == level.rank() && optimizer.via.empty();
  Origin& offload = config.origin("training.offload");
  if (!counts || !is_paged_name(one->value) || offload.level != Origin::Level::standard) return;
  config.settings.training.offload = Offload::automatic;
  offload = optimizer;
  offload.via = "optimizer";
  config.notes.push_back(
      fmt::format("{}: {} is optimizer: {} with offload: auto (states in host memory); offload: none keeps "
                  "them on the GPU",
                  optimizer.where(), one->value.text, config.value("training.optimizer")));
}

// Returns the text as a part of a file's name that is valid in any file system and shell.
std::string plain_name(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"') continue;  // a quote of YAML
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
  // With resume_from_checkpoint: allow_changes, the folder is that of the file without the command line's
  // changes.
  for (std::size_t i = 0;
       !config.settings.training.resume_from_checkpoint.allow_changes && i < config.schema->size(); ++i) {
    const Key& key = (*config.schema)[i];
    if (config.origins[i].level != Origin::Level::command_line) continue;
    if (!key.makes_another_run() && (key.setting() == nullptr || key.effect != Effect::content)) continue;
    const std::string_view formerly = key.setting()->formerly;
    name += "-" + plain_name(fmt::format("{}={}", formerly.empty() ? key.name() : formerly,
                                         key.setting()->type.show(config.settings)));
  }
  if (name.size() > kLongest) {
    std::uint32_t hash = 2166136261U;  // FNV-1a: the same name on every machine
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
    name = fmt::format("{}-{}", name.substr(0, kLongest), hash);
  }
  return "runs/" + name;
}

}  // namespace

std::string Origin::text() const {
  const std::string place = !file.empty()              ? fmt::format("{}:{}", file, line)
                            : level == Level::standard ? "default"
                                                       : "command line";
  return via.empty() ? place : fmt::format("{} ({})", place, via);
}

std::string Origin::where() const {
  if (file.empty()) return text();
  return fmt::format("{}:{}:{}{}", file, line, column, via.empty() ? "" : " (" + via + ")");
}

const Origin& Config::origin(std::string_view path) const { return origins.at(schema->index(path)); }
Origin& Config::origin(std::string_view path) { return origins.at(schema->index(path)); }
std::string Config::value(std::string_view path) const { return schema->setting(path)->type.show(settings); }

Result<Config> parse(std::string_view text, std::string_view name, std::span<const std::string> overrides) {
  ASSIGN_OR_RETURN(auto file, given_by_file(text, name));
  ASSIGN_OR_RETURN(auto words, given_by_words(overrides));
  const std::array inputs = {std::move(file), std::move(words)};
  ASSIGN_OR_RETURN(const auto task, choose_task(inputs));
  Result<Config> config = defaults(*task);
  if (!config.ok()) return config;
  ASSIGN_OR_RETURN(const auto low, collected(inputs[0], *config->schema));
  ASSIGN_OR_RETURN(const auto high, collected(inputs[1], *config->schema));
  RETURN_IF_ERROR(check_refused(*config->schema, low, high));
  bool offloads_gradients = false;
  for (const Level* level : {&low, &high}) {
    RETURN_IF_ERROR(level->apply(*config));
    // A DeepSpeed file named on the command line replaces a DeepSpeed file named in the config file.
    if (level == &high || high.find(config->schema->index("training.deepspeed")) == nullptr)
      RETURN_IF_ERROR(apply_deepspeed(*level, *config, offloads_gradients));
  }
  if (offloads_gradients) offload_gradients_too(*config);
  for (const Level* level : {&low, &high}) offload_paged_states(*level, *config);
  config->settings.task = task->name;
  RETURN_IF_ERROR(apply_recipe(*task, *config));
  RETURN_IF_ERROR(settle_and_check(*config));
  return config;
}

Result<Config> load(const std::string& path, std::span<const std::string> overrides) {
  ASSIGN_OR_RETURN(auto text, read_file(path));
  auto config = parse(text, path, overrides);
  if (!config.ok()) return config;
  if (config->settings.output_dir == kAutomaticFolder)
    config->settings.output_dir = automatic_folder(path, *config);
  resolve_paths(*config, path);
  return config;
}

}  // namespace octavo_train
