// Writes a config as text: the YAML that is saved with a run, the table of --print-config, and the reference
// in docs/.
// SPDX-License-Identifier: MIT
#include "train/config/config.h"
#include "train/config/options.h"
#include "train/config/recipe.h"
#include "train/config/task_config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace octavo_train {
namespace {

// Columns are padded to the widest entry, up to this limit, so that one long path does not push everything to
// the right.
constexpr std::size_t kWidestColumn = 36;

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string code(std::string_view text) { return fmt::format("`{}`", text); }

// Returns the key's other names, such as " (also `lr`)"; empty if it has none.
std::string other_names(const Setting& setting) {
  std::vector<std::string> notes;
  if (!setting.also.empty()) notes.push_back("also " + joined(setting.also, ", ", code));
  if (!setting.also_below.empty()) notes.push_back("also below " + code(setting.also_below));
  if (!setting.formerly.empty()) notes.push_back("formerly " + code(setting.formerly));
  return notes.empty() ? "" : fmt::format(" ({})", joined(notes, "; "));
}

// Returns a table for each section. `level` is the Markdown prefix of the headings.
std::string settings_tables(const std::vector<Key>& keys, std::string_view level) {
  std::string out;
  std::string_view section = "?";
  for (const Key& key : keys) {
    const Setting* setting = key.setting();
    if (setting == nullptr) continue;
    if (key.section() != section) {
      section = key.section();
      out += fmt::format("\n{} {}\n\n| key | default | expected | meaning |\n|---|---|---|---|\n", level,
                         section.empty() ? "Outside any section" : code(section));
    }
    out += fmt::format("| {}{} | {} | {} | {} |\n", code(key.name()), other_names(*setting),
                       code(setting->fallback), setting->type.expected, key.meaning);
  }
  return out;
}

std::string switches_table(const std::vector<Key>& keys) {
  std::string out = "\n## Other spellings\n\n| key | true means | false means |\n|---|---|---|\n";
  for (const Key& key : keys) {
    const auto* const spelling = std::get_if<Switch>(&key.role);
    if (spelling == nullptr) continue;
    const std::string_view target = spelling->target.substr(spelling->target.find('.') + 1);
    const std::string if_false = spelling->agrees != nullptr
                                     ? fmt::format("`{}: {}`; {}", target, spelling->otherwise, key.meaning)
                                     : fmt::format("`{}` instead of `{}`; no effect on other values",
                                                   spelling->otherwise, spelling->value);
    out += fmt::format("| {} | `{}: {}` | {} |\n", code(key.name()), target, spelling->value, if_false);
  }
  return out;
}

// Returns the table of refused keys; empty if no key is refused. `level` is the Markdown prefix of the
// heading.
std::string refused_table(const std::vector<Key>& keys, std::string_view level) {
  std::string rows;
  for (const Key& key : keys)
    if (const auto* refusal = std::get_if<Refused>(&key.role))
      rows += fmt::format("| {} | {} |\n", code(key.name()), refusal->reason);
  if (rows.empty()) return rows;
  return fmt::format(
      "\n{} Refused keys of other tools\n\nThe values `false` and `null` are accepted, because they request "
      "nothing.\n\n| key | what to use instead |\n|---|---|\n{}",
      level, rows);
}

std::optional<std::string> difference(const Key& key, const Settings& then, const Settings& now) {
  const Setting* setting = key.setting();
  if (setting == nullptr || setting->not_saved) return std::nullopt;
  const std::string before = setting->type.show(then), after = setting->type.show(now);
  if (before == after) return std::nullopt;
  return fmt::format("{}: {} -> {}", key.path, before, after);
}

// Returns the value that a setting has in effect. An option that is null has the algorithm's value.
std::string effective(const Setting& setting, const Settings& settings) {
  const octavo::Algorithm algorithm = settings.training.optimizer.algorithm;
  const std::string given = setting.type.show(settings);
  if (setting.option.empty() || given != "null") return given;
  const octavo::Option* const option = find_option(algorithm, setting.option);
  return option == nullptr ? given
                           : option_text(*option, option_value(settings.training, algorithm, *option));
}

// Returns true for an unset option that the chosen algorithm does not have.
bool is_foreign(const Setting& setting, const Settings& settings) {
  return setting.omit_if_null && setting.type.show(settings) == "null" &&
         find_option(settings.training.optimizer.algorithm, setting.option) == nullptr;
}

// Lists the names of all algorithms, and one algorithm with each format.
std::string optimizers_text() {
  const std::string names = joined(octavo::all_algorithms(), ", ",
                                   [](octavo::Algorithm algorithm) { return code(octavo::name(algorithm)); });
  const octavo::Algorithm example = octavo::parse_algorithm(recipe::kWithFp32).value();
  const std::string examples = joined(octavo::all_state_formats(), ", ", [&](octavo::StateFormat format) {
    return code(optimizer_name().write({example, format})) +
           (format == octavo::StateFormat::fp32 ? " (fp32)" : "");
  });
  return "An optimizer is an algorithm (" + names + ")\n" +
         R"(and the format of its states, with or without an underscore between them:
)" + examples +
         R"(; [formats.md](formats.md) lists their bytes.

The options of the algorithms are keys of `training`. It is an error to give an option that the chosen
algorithm (and `optimizer_fallback`) does not have, unless the value is the key's default; the error lists
the algorithm's options. An option that is null has the algorithm's own default. So has an option that is not
given, if the algorithm's default differs from the key's; `--print-config` shows the values.

Formats with blocks have their default block size, which [formats.md](formats.md) lists; no key changes it (`block_size` is the length
of a text's samples). A name with `paged_` before it, as in bitsandbytes, is the optimizer with `offload: auto`.
)";
}

std::string task_tables() {
  std::string out;
  for (const TaskConfig& task : declared_tasks()) {
    out += fmt::format("\n## Task `{}`\n\n{}\n\n```yaml\n{}```\n{}{}", task.name, task.meaning, task.example,
                       settings_tables(task.keys(), "###"), refused_table(task.keys(), "###"));
  }
  return out;
}

}  // namespace

std::string to_yaml(const Settings& settings) {
  std::string out;
  std::string_view section;
  for (const Key& key : schema_of(settings).keys()) {
    const Setting* setting = key.setting();
    if (setting == nullptr || setting->not_saved) continue;
    if (setting->omit_if_null && setting->type.show(settings) == "null") continue;
    if (key.section() != section) {
      section = key.section();
      if (!section.empty()) out += fmt::format("{}:\n", section);
    }
    out += fmt::format("{}{}: {}\n", section.empty() ? "" : "  ", key.name(), setting->type.show(settings));
  }
  return out;
}

std::vector<std::string> differences(const Settings& then, const Settings& now) {
  if (then.task != now.task) return {"task: " + then.task + " -> " + now.task};
  std::vector<std::string> out;
  for (const Key& key : schema_of(now).keys())
    if (auto change = difference(key, then, now)) out.push_back(std::move(*change));
  return out;
}

std::vector<std::string> experiment_differences(const Settings& then, const Settings& now,
                                                std::int64_t ranks_then, std::int64_t ranks_now) {
  const auto sequences = [](const TrainingSettings& training, std::int64_t ranks) {
    return static_cast<double>(training.global_batch_size.value_or(training.per_device_train_batch_size *
                                                                   training.gradient_accumulation_steps)) *
           static_cast<double>(training.global_batch_size ? 1 : ranks);
  };
  const bool same_step = sequences(then.training, ranks_then) == sequences(now.training, ranks_now);
  if (then.task != now.task) return differences(then, now);
  std::vector<std::string> out;
  for (const Key& key : schema_of(now).keys()) {
    if (!key.makes_another_run()) continue;
    const bool divides_the_step = key.path == "training.per_device_train_batch_size" ||
                                  key.path == "training.gradient_accumulation_steps" ||
                                  key.path == "training.global_batch_size";
    if (same_step && divides_the_step) continue;
    if (auto change = difference(key, then, now)) out.push_back(std::move(*change));
  }
  return out;
}

std::string to_table(const Config& config) {
  std::vector<std::array<std::string, 4>> rows = {{"key", "value", "origin", "meaning"}};
  for (std::size_t i = 0; i < config.schema->size(); ++i) {
    const Key& key = (*config.schema)[i];
    const Setting* setting = key.setting();
    if (setting == nullptr || is_foreign(*setting, config.settings)) continue;
    rows.push_back({std::string(key.path), effective(*setting, config.settings), config.origins[i].text(),
                    std::string(key.meaning)});
  }
  std::array<std::size_t, 3> widths{};
  for (const auto& row : rows)
    for (std::size_t c = 0; c < widths.size(); ++c)
      widths[c] = std::max(widths[c], std::min(row[c].size(), kWidestColumn));
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c) line += (c > 0 ? "  " : "") + padded(row[c], widths[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n    " + row[3] + "\n";
  }
  return out;
}

std::string reference_page() {
  return R"(# The config of a training run

<!-- Generated from train/config/schema.cc and the tasks: OCTAVO_UPDATE_DOCS=1 build/tests/train_config_test -->

A config is a YAML file with the sections `model`, `data` and `training`. Arguments `key=value` after the file's name override
it: `learning_rate=3e-4 data.block_size=1024`. The value is YAML. If a key is given twice on the command line, the last value is used.

- A key may be written without its section if only one section has it: `learning_rate: 1e-3` at the top level is
  `training.learning_rate`. Two sections have `seed`, so it needs its section.
- A key with a dot in its name may be nested: `model: {encoder: {d_model: 256}}` is `encoder.d_model: 256` in `model`.
- Keys may be written in upper case: `LEARNING_RATE`.
- "Also" marks a key's name in other tools, and "formerly" its name in earlier versions. Both are still read.
- Types are checked, and `"8"` in quotes is not a number. A key given twice is an error, and so is an unknown key:
  `run.yaml:7:3: training.learning_rat: unknown key; did you mean training.learning_rate?`
- If two keys contradict each other, the error names both places. If one is in the file and the other on the command
  line, the command line takes precedence. If one file has both `max_steps` and `num_train_epochs`, `max_steps` takes precedence, as in transformers, and the log says so.
- A flat file may consist of lines such as `LEARNING_RATE = 3e-4`, like the settings in a script, with `True`, `False` and `None`.
- **Relative paths.** A path in the file that the run reads (`data.train`, `resume_from_checkpoint`) is searched in the
  file's folder first, then in the working directory of the command. A path on the command line is relative to the working directory.
  `output_dir`, which the run creates, is always relative to the working directory. If a path is in neither place, the error
  names both. The `config.yaml` that is saved with a run has absolute paths, so `octavo train RUN/config.yaml` resumes the run from any folder.
- A config must not contain YAML's anchors, aliases or tags, or several documents. It has at most 1 MiB of UTF-8.

)" + optimizers_text() +
         "\nThe first tables list the keys of every run. The tables of the tasks list the keys that a task "
         "and its models add.\n" +
         settings_tables(general_keys(), "##") + switches_table(general_keys()) +
         refused_table(general_keys(), "##") + task_tables();
}

}  // namespace octavo_train
