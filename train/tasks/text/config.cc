// The config keys of the task `text` and of its models.
// SPDX-License-Identifier: MIT
#include "train/config/checks.h"
#include "train/config/task_config.h"
#include "train/tasks/entry.h"
#include "train/tasks/text/settings.h"

namespace octavo_train {
namespace {

constexpr std::string_view kBdh = "bdh";

std::vector<Key> bdh_keys() {
  using B = BdhSettings;
  return {
      {"model.n_layer", Setting{field(&B::n_layer, integer(1, 4096)), "6"}, "number of layers"},
      {"model.n_embd", Setting{field(&B::n_embd, integer(1, kMaxSize)), "256"}, "width of the embedding"},
      {"model.n_head", Setting{field(&B::n_head, integer(1, 4096)), "4"}, "attention heads"},
      {"model.mlp_internal_dim_multiplier",
       Setting{field(&B::mlp_internal_dim_multiplier, integer(1, 65536)), "128"},
       "sparse neurons per unit of n_embd, over all heads"},
      {"model.dropout", Setting{field(&B::dropout, real(kFraction)), "0.1"},
       "probability of dropping an activation"},
      {"model.gradient_checkpointing", Setting{field(&B::gradient_checkpointing, flag()), "false"},
       "recompute activations in the backward pass instead of keeping them: slower, less memory",
       Effect::none},
  };
}

// The neurons are divided among the heads, and rotary attention (RoPE) uses them in pairs.
Status check_bdh(const Config& config) {
  const auto& model = config.settings.task_settings.get<BdhSettings>();
  if (model.n_embd * model.mlp_internal_dim_multiplier % (2 * model.n_head) == 0) return {};
  return clash_error(config, "model.n_head", "model.n_embd",
                     "n_embd * mlp_internal_dim_multiplier must be a multiple of 2 * n_head");
}

std::vector<Key> text_keys() {
  std::vector<Key> out = {{"model.name",
                           Setting{field(&ModelSettings::name, word({std::string(kBdh)})), kBdh},
                           "model to train"}};
  const std::vector<Key> bdh = bdh_keys();
  out.insert(out.end(), bdh.begin(), bdh.end());
  const std::vector<Key> own = {
      {"data.train", Setting{field(&TextSettings::train, paths()), "null"},
       "text to train on (required): files, folders (all files in them) and patterns such as books/*.txt",
       Effect::content},
      {"data.validation", Setting{field(&TextSettings::validation, paths()), "null"},
       "text to evaluate on; null: a part of data.train is held out", Effect::content},
      {"data.block_size",
       Setting{field(&TextSettings::block_size, integer(1, kMaxSize)),
               "512",
               {"seq_len", "context_length", "max_seq_length"}},
       "tokens (bytes) in a sequence"},
      {"training.sample_tokens", Setting{field(&TextSettings::sample_tokens, integer(0, kMaxSize)), "300"},
       "length of the text that the model generates at the end of a run; 0: none", Effect::none},
  };
  out.insert(out.end(), own.begin(), own.end());
  return out;
}

Status check_complete_text(const Config& config) {
  if (config.settings.task_settings.get<TextSettings>().train) return {};
  const Origin& origin = config.origin("data.train");
  return invalid_error(
      "{}data.train: not given; name the text to train on, `data: {{train: corpus.txt}}` in the file or "
      "data.train=corpus.txt after it",
      origin.level == Origin::Level::standard ? "" : origin.where() + ": ");
}

}  // namespace

TaskConfig text_task_config() {
  return {
      .name = "text",
      .meaning =
          "A language model of bytes. `data.train` and `data.validation` name a file, a folder (all files "
          "in it and its subfolders), a pattern in\nquotes (`\"books/*.txt\"`), or a list of these. The "
          "files of a "
          "folder or a pattern are sorted by path; hidden and empty files are skipped.",
      .models = kBdh,
      .metrics = {"loss"},
      .example = R"(model:    {name: bdh, n_layer: 6, n_embd: 256, n_head: 4}
data:     {train: corpus.txt, block_size: 512}
training: {learning_rate: 1.0e-3, compute_dtype: bfloat16, max_steps: 3000}
output_dir: runs/first
)",
      .takes = [](std::string_view model) { return model == kBdh; },
      .keys = text_keys,
      .check = check_bdh,
      .check_complete = check_complete_text};
}

}  // namespace octavo_train
