// A config as text: the YAML that is saved with a run, the table of --print-config, and the reference in
// docs/.
// SPDX-License-Identifier: MIT
#include "train/config/config.h"
#include "train/config/schema.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace octavo::train {
namespace {

// Columns are padded to the widest entry up to a limit: one long path must not push everything right.
constexpr std::size_t kWidestColumn = 36;

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string code(std::string_view text) { return std::string("`").append(text).append("`"); }

std::string also_text(const Setting& setting) {
  std::string out;
  for (const std::string_view name : setting.also) out += (out.empty() ? " (also " : ", ") + code(name);
  return out.empty() ? out : out + ")";
}

std::string settings_tables() {
  std::string out;
  std::string_view section = "?";
  for (const Key& key : schema()) {
    const Setting* setting = key.setting();
    if (setting == nullptr) continue;
    if (key.section() != section) {
      section = key.section();
      out += "\n## " + (section.empty() ? std::string("Outside any section") : code(section)) +
             "\n\n| key | default | expected | meaning |\n|---|---|---|---|\n";
    }
    out += "| " + code(key.name()) + also_text(*setting) + " | " + code(setting->fallback) + " | " +
           setting->type.expected + " | " + std::string(key.meaning) + " |\n";
  }
  return out;
}

std::string other_tables() {
  std::string switches = "\n## Other spellings\n\n| key | the same as | where it is false |\n|---|---|---|\n";
  std::string refused =
      "\n## Known, and refused\n\n`false` and `null` are accepted; they ask for nothing.\n\n"
      "| key | why |\n|---|---|\n";
  for (const Key& key : schema()) {
    if (const auto* spelling = std::get_if<Switch>(&key.role)) {
      const std::string target(spelling->target.substr(spelling->target.find('.') + 1));
      switches += "| " + code(key.name()) + " | " + code(target + ": " + std::string(spelling->value)) +
                  " | " + code(spelling->otherwise) + " instead of " + code(spelling->value) +
                  "; no effect on other values |\n";
    } else if (const auto* refusal = std::get_if<Refused>(&key.role)) {
      refused += "| " + code(key.name()) + " | " + std::string(refusal->reason) + " |\n";
    }
  }
  return switches + refused;
}

std::optional<std::string> difference(const Key& key, const Settings& then, const Settings& now) {
  const Setting* setting = key.setting();
  if (setting == nullptr) return std::nullopt;
  const std::string before = setting->type.show(then), after = setting->type.show(now);
  if (before == after) return std::nullopt;
  return std::string(key.path) + ": " + before + " -> " + after;
}

}  // namespace

std::string to_yaml(const Settings& settings) {
  std::string out;
  std::string_view section;
  for (const Key& key : schema()) {
    const Setting* setting = key.setting();
    if (setting == nullptr) continue;
    if (key.section() != section) {
      section = key.section();
      if (!section.empty()) out += std::string(section) + ":\n";
    }
    out +=
        (section.empty() ? "" : "  ") + std::string(key.name()) + ": " + setting->type.show(settings) + "\n";
  }
  return out;
}

std::vector<std::string> differences(const Settings& then, const Settings& now) {
  std::vector<std::string> out;
  for (const Key& key : schema()) {
    if (auto change = difference(key, then, now)) out.push_back(std::move(*change));
  }
  return out;
}

std::vector<std::string> experiment_differences(const Settings& then, const Settings& now) {
  const auto sequences = [](const Settings& settings) {
    return settings.training.per_device_train_batch_size * settings.training.gradient_accumulation_steps;
  };
  const bool same_step = sequences(then) == sequences(now);
  std::vector<std::string> out;
  for (const Key& key : schema()) {
    if (!key.makes_another_run()) continue;
    const bool divides_the_step = key.path == "training.per_device_train_batch_size" ||
                                  key.path == "training.gradient_accumulation_steps";
    if (same_step && divides_the_step) continue;
    if (auto change = difference(key, then, now)) out.push_back(std::move(*change));
  }
  return out;
}

std::string to_table(const Config& config) {
  std::vector<std::array<std::string, 4>> rows = {{"key", "value", "origin", "meaning"}};
  for (std::size_t i = 0; i < schema().size(); ++i) {
    const Key& key = schema()[i];
    if (const Setting* setting = key.setting()) {
      rows.push_back({std::string(key.path), setting->type.show(config.settings), config.origins[i].text(),
                      std::string(key.meaning)});
    }
  }
  std::array<std::size_t, 3> widths{};
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < widths.size(); ++c) {
      widths[c] = std::max(widths[c], std::min(row[c].size(), kWidestColumn));
    }
  }
  std::string out;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < widths.size(); ++c) out += padded(row[c], widths[c]) + "  ";
    out += row[3] + "\n";
  }
  return out;
}

std::string reference_page() {
  return R"(# The config of a training run

<!-- Generated from train/config/schema.cc: OCTAVO_UPDATE_DOCS=1 build/tests/train_config_test -->

A YAML file with the sections `model`, `data` and `training`, and after it on the command line any number of
`key=value`, which override it: `learning_rate=3e-4 data.block_size=1024`. The value is YAML. If a key is given twice on the
command line, the last one counts.

- A key may stand without its section where only one section has it: `learning_rate: 1e-3` at the top is
  `training.learning_rate`. `seed` is in two sections, so it needs one.
- Keys may be written in upper case: `LEARNING_RATE`.
- Types are checked, `"8"` in quotes is no number, a key given twice is an error, and so is an unknown one:
  `run.yaml:7:3: training.learning_rat: unknown key; did you mean training.learning_rate?`
- Two keys that contradict each other are an error that names both places. If one is in the file and the other on the command
  line, the command line's counts (`max_steps` and `num_train_epochs`, for example).
- Relative paths, in the file and on the command line, start from the working directory of the command, not from the file's folder.
- `data.train` and `data.validation` name a file, a folder (all files in it and below), a pattern in quotes (`"books/*.txt"`), or a
  list of these. The files of a folder or a pattern are sorted by path; hidden and empty ones are left out.
- YAML's anchors, aliases, tags and several documents are not part of a config. At most 1 MiB of UTF-8.

An optimizer is an algorithm (`adam`, `adamw`, `sgd`, `lion`) and the format of its states, with or without an underscore between them:
`adamw` (fp32), `adamw_bf16`, `adamw_8bit`, `adamw_4bit`, `adamw_4bit_rank1`, `adamw_fp8`, `adamw_fp8_e5m2`; [formats.md](formats.md) has
their bytes.

```yaml
model:    {name: bdh, n_layer: 6, n_embd: 256, n_head: 4}
data:     {train: corpus.txt, block_size: 512}
training:
  optimizer: adamw_8bit
  learning_rate: 1.0e-3
  compute_dtype: bfloat16
  max_steps: 3000
output_dir: runs/first
```
)" + settings_tables() +
         other_tables();
}

}  // namespace octavo::train
