// Implements tokenizer.h with SentencePiece.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include "train/tasks/speech/tokenizer/piece_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

// Two shared libraries export a variable of this name: libsentencepiece one of 32 bytes, LibTorch's libc10
// one of 4 bytes. In a program that loads both, both use the one that was loaded first. If that is libc10's,
// SentencePiece overwrites the memory after it, and torch then aborts instead of throwing an out-of-memory
// error. The definition below takes precedence over both. libc10 does not read the variable in our programs.
extern "C" {
extern unsigned char FLAGS_minloglevel[64];
alignas(64) __attribute__((visibility("default"))) unsigned char FLAGS_minloglevel[64] = {};
}

namespace octavo_train {
namespace {

// SentencePiece's own messages begin with its source file and line: `trainer_interface.cc(582) [condition]
// message`.
std::string reason_of(const sentencepiece::util::Status& status) {
  std::string text = status.error_message();
  if (const std::size_t end = text.rfind("] "); end != std::string::npos) text.erase(0, end + 2);
  return text.empty() ? "no reason is given" : text;
}

class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::function<bool(std::string&)>& next) : next_(next) { Next(); }
  [[nodiscard]] bool done() const override { return done_; }
  void Next() override { done_ = !next_(line_); }
  [[nodiscard]] const std::string& value() const override { return line_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::function<bool(std::string&)>& next_;
  std::string line_;
  bool done_ = false;
};

}  // namespace

bool tokenizer_built_in() { return true; }

struct Tokenizer::Model {
  sentencepiece::SentencePieceProcessor processor;
  std::string bytes, name;
};

Result<Tokenizer> Tokenizer::from_bytes(std::string bytes, std::string name) {
  if (bytes.starts_with('{')) {  // a SentencePiece model never begins with it
    ASSIGN_OR_RETURN(const PieceModel model, read_tokenizer_json(bytes, name));
    bytes = write_piece_model(model);
  }
  // SentencePiece does not check the character map, and a damaged map makes it read out of bounds.
  RETURN_IF_ERROR(read_piece_model(bytes, name));
  auto model = std::make_shared<Model>();
  model->bytes = std::move(bytes);
  model->name = std::move(name);
  const auto status = model->processor.LoadFromSerializedProto(model->bytes);
  if (!status.ok())
    return Status::invalid(model->name + ": it is not a SentencePiece model: " + reason_of(status));
  if (model->processor.GetPieceSize() < 1) return Status::invalid(model->name + ": the model has no pieces");
  return Tokenizer(std::move(model));
}

std::int64_t Tokenizer::size() const { return model_->processor.GetPieceSize(); }

std::vector<std::int64_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int> ids;
  // Fails only if no model is loaded.
  model_->processor.Encode({text.data(), text.size()}, &ids).IgnoreError();
  return {ids.begin(), ids.end()};
}

std::string Tokenizer::decode(std::span<const std::int64_t> tokens) const {
  std::vector<int> ids;
  ids.reserve(tokens.size());
  for (const std::int64_t token : tokens) ids.push_back(static_cast<int>(token));
  std::string out;
  model_->processor.Decode(ids, &out).IgnoreError();
  return out;
}

std::string Tokenizer::piece(std::int64_t token) const {
  return model_->processor.IdToPiece(static_cast<int>(token));
}
bool Tokenizer::is_unknown(std::int64_t token) const {
  return model_->processor.IsUnknown(static_cast<int>(token));
}
const std::string& Tokenizer::bytes() const { return model_->bytes; }
const std::string& Tokenizer::name() const { return model_->name; }

Result<std::string> train_tokenizer(const TokenizerOptions& plan,
                                    const std::function<bool(std::string&)>& next) {
  std::unordered_map<std::string, std::string> options = {
      {"vocab_size", std::to_string(plan.vocabulary)},
      {"model_type", plan.kind},
      {"character_coverage", std::to_string(plan.character_coverage)},
      {"byte_fallback", plan.byte_fallback ? "true" : "false"},
      {"bos_id", "-1"},
      {"eos_id", "-1"},
      {"hard_vocab_limit", "false"},
      {"num_threads", "1"},
      {"input_sentence_size", "0"},
      {"shuffle_input_sentence", "false"},
      {"minloglevel", "3"},
  };
  if (!plan.symbols.empty())
    options["user_defined_symbols"] = fmt::format("{}", fmt::join(plan.symbols, ","));
  Lines lines(next);
  if (lines.done()) return Status::invalid("no text is there to train a tokenizer on");
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, &lines, &model);
  if (!status.ok()) {
    return invalid_error("a tokenizer of {} tokens could not be trained: {}", plan.vocabulary,
                         reason_of(status));
  }
  return model;
}

}  // namespace octavo_train
