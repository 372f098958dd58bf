// SPDX-License-Identifier: MIT
#include "train/tasks/text/task.h"

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/base/terminal_text.h"
#include "train/tasks/text/entry.h"
#include "train/tasks/text/record_json.h"
#include "train/tasks/text/sampler.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBytes = "bytes";  // name of a batch's tensor [rows, block_size + 1], uint8

struct Found {
  std::vector<std::string> train;
  std::optional<std::vector<std::string>> validation;
};

Result<Found> find_files(const Settings& settings) {
  const auto& text = settings.own.get<TextSettings>();
  Found out;
  ASSIGN_OR_RETURN(auto train, find_text_files("data.train", *text.train, settings));
  out.train = std::move(train);
  if (text.validation) {
    ASSIGN_OR_RETURN(auto files, find_text_files("data.validation", *text.validation, settings));
    out.validation = std::move(files);
  }
  return out;
}

// Counts the files that have the size and the hash of an earlier one.
std::size_t repeated_files(const std::vector<FileRecord>& files) {
  std::set<std::pair<std::int64_t, std::string>> seen;
  for (const FileRecord& file : files) seen.insert({file.size, file.hash});
  return files.size() - seen.size();
}

}  // namespace

std::unique_ptr<Task> TextEntry::make() { return std::make_unique<TextTask>(); }

Result<Task::DataChange> TextTask::open(const Opening& opening) {
  settings_ = opening.settings;
  text_ = settings_.own.get<TextSettings>();
  ASSIGN_OR_RETURN(auto found, find_files(settings_));
  // Version 0.1 held out the end of all the files together, and recorded nothing.
  const bool by_old_rule = !opening.checkpoint.empty() && opening.record == nullptr;
  ASSIGN_OR_RETURN(auto now, record_text(found.train, found.validation, text_.block_size,
                                         by_old_rule ? HoldOut::end_of_all : HoldOut::each_file));
  DataChange change;
  record_ = std::move(now);
  if (opening.record != nullptr) {
    auto then = text_record(*opening.record);
    if (!then.ok()) return Status(then.status().code(), opening.checkpoint + ": " + then.status().message());
    ASSIGN_OR_RETURN(auto compared, compare_text(*then, record_));
    change.changed = std::move(compared.changed);
    change.noted = std::move(compared.grown);
    record_ = std::move(compared.record);
  }
  ASSIGN_OR_RETURN(auto split, open_split(record_));
  split_ = std::move(split);
  RETURN_IF_ERROR(check_windows(opening.checkpoint));
  evaluation_ = evaluation_offsets(split_.validation, text_.block_size, settings_.data.max_eval_samples);
  return change;
}

// Checks that both parts of the text are long enough for a window: the division may have been made for a
// smaller block_size.
Status TextTask::check_windows(const std::string& checkpoint) const {
  const std::int64_t least = std::min(split_.train.size(), split_.validation.size());
  if (least > text_.block_size) return {};
  return Status::invalid("data.block_size: got " + std::to_string(text_.block_size) + ", but of its text " +
                         checkpoint + " trains on " + std::to_string(split_.train.size()) +
                         " bytes and evaluates on " + std::to_string(split_.validation.size()) +
                         "; use less than " + std::to_string(least));
}

Json TextTask::data_record() const { return to_json(record_); }

std::shared_ptr<torch::nn::Module> TextTask::build(const Settings& settings) {
  settings_ = settings;
  text_ = settings.own.get<TextSettings>();
  model_settings_ = settings.own.get<BdhSettings>();
  model_ = make_text_model(settings);
  return model_;
}

std::int64_t TextTask::samples() const { return sample_count(split_.train, text_.block_size, -1); }

Batch TextTask::read(const Order& order, std::uint64_t first, std::int64_t rows) const {
  const Sampler sampler(split_.train, text_.block_size, order);
  const auto row = static_cast<std::size_t>(text_.block_size) + 1;
  Batch out;
  torch::Tensor bytes = torch::empty({rows, text_.block_size + 1}, torch::kUInt8);
  const std::span<std::uint8_t> all(bytes.data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes.numel()));
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
    out.draws.push_back(first + i);
    sampler.read(first + i, all.subspan(i * row, row));
  }
  out.tensors.emplace_back(kBytes, std::move(bytes));
  return out;
}

torch::Tensor TextTask::loss(const Batch& batch, const PassKey& key) {
  const torch::Tensor& bytes = batch.at(kBytes);
  DropoutKey pass{key.seed, static_cast<std::uint64_t>(key.step), {}};
  if (model_settings_.dropout > 0.0) pass.samples = draw_numbers(batch, bytes.device());
  return text_loss(*model_, to_tokens(bytes), pass);
}

std::optional<Tally> TextTask::tally(const EvaluationCall& call) {
  const auto losses =
      evaluate_text(*model_, split_.validation.corpus, evaluation_, text_.block_size,
                    settings_.training.per_device_eval_batch_size, settings_.training.compute_dtype, call);
  if (!losses) return std::nullopt;
  return Tally{{losses->sum, static_cast<double>(losses->windows)}, losses->windows * text_.block_size};
}

Evaluation TextTask::evaluation(const Tally& all) const {
  return {{{"loss", all.sums[0] / all.sums[1], Better::lower}}, all.units};
}

std::string TextTask::write(const std::string& prompt, const SampleOptions& options,
                            const torch::Device& device, const std::function<bool(char)>& each) {
  return generate(*model_, prompt, text_.block_size, options, device, settings_.training.compute_dtype, each);
}

std::optional<Preview> TextTask::preview(const torch::Device& device, const std::function<bool()>& stop) {
  if (text_.sample_tokens == 0) return std::nullopt;
  SampleOptions options;
  options.tokens = text_.sample_tokens;
  options.top_k = 3;
  const std::string prompt = "\n";
  const std::string text = write(prompt, options, device, [&](char) { return !stop(); });
  return Preview{"a sample", prompt + terminal_text(text), {{"prompt", prompt}, {"text", text}}};
}

std::vector<std::string> TextTask::introduction() const {
  const std::int64_t all = samples(), asked = settings_.data.max_samples;
  const auto& stages = settings_.data.stages;
  const std::int64_t most = stages ? stages->back() : asked;
  std::vector<std::string> out = {bytes_text(split_.train.size()) + " of text to train on, " +
                                  std::to_string(most < 0 ? all : std::min(most, all)) + " samples of " +
                                  std::to_string(text_.block_size) + " bytes; " +
                                  bytes_text(split_.validation.size()) +
                                  (text_.validation ? " to evaluate on" : " held out to evaluate on")};
  if (const std::size_t repeated = repeated_files(record_.train); repeated > 0)
    out.push_back("warning: " + std::to_string(repeated) + " of " + std::to_string(record_.train.size()) +
                  " files have the same text as another one (symbolic links count as files), so that text is "
                  "trained on more than once");
  return out;
}

void TextTask::describe(Json& start) const {
  start["train_bytes"] = split_.train.size();
  start["validation_bytes"] = split_.validation.size();
  start["unigram_entropy"] = estimated_unigram_entropy(split_.validation);
}

std::string TextTask::batch_text(std::int64_t rows) const {
  return std::to_string(rows) + " sequences of " + std::to_string(text_.block_size) + " bytes";
}

std::vector<std::string> TextTask::memory_advice() const {
  if (text_.block_size <= 128) return {};
  return {"data.block_size=" + std::to_string(text_.block_size / 2) +
          " (another experiment: the model sees half of the text before a byte)"};
}

Task::SizeKey TextTask::length_key() const { return {"data.block_size", text_.block_size, 16}; }

// A head has an even number of neurons, and matmuls work best with multiples of 16.
Task::SizeKey TextTask::model_key() const {
  return {"model.n_embd", model_settings_.n_embd, std::max<std::int64_t>(16, 2 * model_settings_.n_head)};
}

std::string TextTask::shorter_steps() const {
  const auto is = [](const char* key, std::int64_t value) {
    return std::string(key) + " is " + std::to_string(value);
  };
  const TrainingSettings& training = settings_.training;
  return "a smaller model (" + is("n_embd", model_settings_.n_embd) + ", " +
         is("mlp_internal_dim_multiplier", model_settings_.mlp_internal_dim_multiplier) + ", " +
         is("n_layer", model_settings_.n_layer) + "); less text in a step (" +
         is("per_device_train_batch_size", training.per_device_train_batch_size) + ", " +
         is("gradient_accumulation_steps", training.gradient_accumulation_steps) + ", " +
         is("block_size", text_.block_size) + ')';
}

}  // namespace octavo_train
