// SPDX-License-Identifier: MIT
#include "train/tasks/text/config.h"

#include "train/tasks/text/entry.h"

namespace octavo_train {
namespace {

constexpr std::string_view kBdh = "bdh";

std::vector<Key> keys() {
  using T = TextSettings;
  std::vector<Key> out = {{"model.name",
                           Setting{field(&ModelSettings::name, word({std::string(kBdh)})), kBdh},
                           "which model to train"}};
  const std::vector<Key> bdh = bdh_keys();
  out.insert(out.end(), bdh.begin(), bdh.end());
  const std::vector<Key> own = {
      {"data.train", Setting{field(&T::train, paths()), "null"},
       "text to train on: files, folders (all files in them) and patterns such as books/*.txt; a run needs "
       "it",
       Effect::content},
      {"data.validation", Setting{field(&T::validation, paths()), "null"},
       "text to evaluate on; null: a part of data.train is held out for it", Effect::content},
      {"data.block_size",
       Setting{field(&T::block_size, integer(1, kMaxSize)),
               "512",
               {"seq_len", "context_length", "max_seq_length"}},
       "tokens (bytes) in a sequence"},
      {"training.sample_tokens", Setting{field(&T::sample_tokens, integer(0, kMaxSize)), "300"},
       "length of the text that the model writes at the end of a run; 0: none", Effect::none},
  };
  out.insert(out.end(), own.begin(), own.end());
  return out;
}

Status check_complete_text(const Config& config) {
  if (config.settings.own.get<TextSettings>().train) return {};
  const Origin& origin = config.origin("data.train");
  return Status::invalid(
      (origin.level == Origin::Level::standard ? "" : origin.place() + ": ") +
      "data.train: not given; name the text to train on, `data: {train: corpus.txt}` in the file or "
      "data.train=corpus.txt after it");
}

}  // namespace

TaskConfig TextEntry::config() {
  return {
      .name = "text",
      .meaning =
          "A language model of bytes. `data.train` and `data.validation` name a file, a folder (all files "
          "in it and below), a pattern in\nquotes (`\"books/*.txt\"`), or a list of these. The files of a "
          "folder or a pattern are sorted by path; hidden and empty ones are left out.",
      .models = kBdh,
      .metrics = {"loss"},
      .example = R"(model:    {name: bdh, n_layer: 6, n_embd: 256, n_head: 4}
data:     {train: corpus.txt, block_size: 512}
training: {learning_rate: 1.0e-3, compute_dtype: bfloat16, max_steps: 3000}
output_dir: runs/first
)",
      .takes = [](std::string_view model) { return model == kBdh; },
      .keys = keys,
      .check = check_bdh,
      .check_complete = check_complete_text};
}

}  // namespace octavo_train
