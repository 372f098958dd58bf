// SPDX-License-Identifier: MIT
#include "train/tasks/text/task.h"

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/base/terminal_text.h"
#include "train/tasks/entry.h"

#include <fmt/format.h>
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

// Counts the files that have the size and the hash of an earlier one.
std::size_t repeated_files(const std::vector<FileRecord>& files) {
  std::set<std::pair<std::int64_t, std::string>> seen;
  for (const FileRecord& file : files) seen.insert({file.size, file.hash});
  return files.size() - seen.size();
}

}  // namespace

std::unique_ptr<Task> make_text_task() { return std::make_unique<TextTask>(); }

Result<TaskData> TextTask::open(const OpenArgs& args) {
  settings_ = args.settings;
  text_ = settings_.task_settings.get<TextSettings>();
  ASSIGN_OR_RETURN(const auto train, find_text_files("data.train", *text_.train, settings_));
  std::optional<std::vector<std::string>> validation;
  if (text_.validation) {
    ASSIGN_OR_RETURN(validation, find_text_files("data.validation", *text_.validation, settings_));
  }
  // Version 0.1 held out the end of all the files together, and recorded nothing.
  const bool by_old_rule = !args.checkpoint.empty() && args.record == nullptr;
  ASSIGN_OR_RETURN(auto record, record_text(train, validation, text_.block_size,
                                            by_old_rule ? HoldOut::end_of_all : HoldOut::each_file));
  TaskData out;
  if (args.record != nullptr) {
    ASSIGN_OR_RETURN(const auto then, with_context(args.checkpoint, text_record(*args.record)));
    ASSIGN_OR_RETURN(auto compared, compare_text(then, record));
    out.change = {std::move(compared.changed), std::move(compared.grown)};
    record = std::move(compared.record);
  }
  ASSIGN_OR_RETURN(auto split, open_split(record));
  RETURN_IF_ERROR(check_windows(split, args.checkpoint));
  out.samples = sample_count(split.train, text_.block_size, -1);
  out.units_per_row = text_.block_size;
  out.record = to_json(record);
  data_ = std::make_shared<Data>(
      Data{split, record.train.size(), repeated_files(record.train),
           evaluation_offsets(split.validation, text_.block_size, settings_.data.max_eval_samples),
           estimated_unigram_entropy(split.validation)});
  return out;
}

// Checks that both parts of the text are long enough for a window: the division may have been made for a
// smaller block_size.
Status TextTask::check_windows(const TextSplit& split, const std::string& checkpoint) const {
  const std::int64_t least = std::min(split.train.size(), split.validation.size());
  if (least > text_.block_size) return {};
  return invalid_error(
      "data.block_size: got {}, but {} divides its text into {} bytes to train on and {} to evaluate on; use "
      "less than {}",
      text_.block_size, checkpoint, split.train.size(), split.validation.size(), least);
}

std::unique_ptr<Task> TextTask::copy_without_model() const {
  auto out = std::make_unique<TextTask>();
  out->settings_ = settings_;
  out->text_ = text_;
  out->data_ = data_;
  return out;
}

TaskModel TextTask::build(const Settings& settings) {
  settings_ = settings;
  text_ = settings.task_settings.get<TextSettings>();
  model_settings_ = settings.task_settings.get<BdhSettings>();
  model_ = make_text_model(settings);
  return {.module = model_, .uses_of_weights = model_->uses_of_weights()};
}

Batch TextTask::largest_batch(const Order& order, std::int64_t rows, BatchUse use) const {
  if (use == BatchUse::evaluation) rows = std::min(rows, static_cast<std::int64_t>(data_->evaluation.size()));
  return read(order, order.start(), rows);
}

Batch TextTask::read(const Order& order, std::uint64_t first, std::int64_t rows) const {
  const Sampler sampler(data_->split.train, text_.block_size, order);
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

std::optional<Tally> TextTask::evaluate_shard(const EvaluationCall& call) {
  const auto losses =
      evaluate_text(*model_, data_->split.validation.corpus, data_->evaluation, text_.block_size,
                    settings_.training.per_device_eval_batch_size, settings_.training.compute_dtype, call);
  if (!losses) return std::nullopt;
  return Tally{{losses->sum, static_cast<double>(losses->windows)}, losses->windows * text_.block_size};
}

Evaluation TextTask::summarize(const Tally& all) const {
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

TaskText TextTask::text() const {
  const TextRange &train = data_->split.train, &validation = data_->split.validation;
  const std::int64_t samples = sample_count(train, text_.block_size, -1), length = text_.block_size;
  const std::int64_t most =
      settings_.data.stages ? settings_.data.stages->back() : settings_.data.max_samples;
  const TrainingSettings& training = settings_.training;
  TaskText out{.unit = {"tokens", "tok"}};
  out.introduction.push_back(
      fmt::format("{} of text to train on, {} samples of {} bytes; {}{}", bytes_text(train.size()),
                  most < 0 ? samples : std::min(most, samples), length, bytes_text(validation.size()),
                  text_.validation ? " to evaluate on" : " held out to evaluate on"));
  if (data_->repeated_files > 0)
    out.introduction.push_back(
        fmt::format("warning: {} of {} files have the same text as another one (symbolic links count as "
                    "files), so their text is trained on more than once",
                    data_->repeated_files, data_->files));
  out.start = {{"train_bytes", train.size()},
               {"validation_bytes", validation.size()},
               {"unigram_entropy", data_->unigram_entropy}};
  out.batch = [length](std::int64_t rows) { return fmt::format("{} sequences of {} bytes", rows, length); };
  if (length > 128)
    out.memory_advice.push_back(
        fmt::format("data.block_size={} (another experiment: the model sees half of the text before a byte)",
                    length / 2));
  out.speed_advice = fmt::format(
      "a smaller model (n_embd is {}, mlp_internal_dim_multiplier is {}, n_layer is {}); less text in a step "
      "(per_device_train_batch_size is {}, gradient_accumulation_steps is {}, block_size is {})",
      model_settings_.n_embd, model_settings_.mlp_internal_dim_multiplier, model_settings_.n_layer,
      training.per_device_train_batch_size, training.gradient_accumulation_steps, length);
  out.length_key = {"data.block_size", length, 16};
  // A head has an even number of neurons, and matmuls work best with multiples of 16.
  out.model_key = {"model.n_embd", model_settings_.n_embd,
                   std::max<std::int64_t>(16, 2 * model_settings_.n_head)};
  return out;
}

}  // namespace octavo_train
