// Implements tokenizer.h in a build without SentencePiece: every function that creates a tokenizer returns an
// error.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <utility>

namespace octavo_train {
namespace {

Status not_built_in() {
  return Status::unsupported(
      "this build has no SentencePiece, so it cannot read or train tokenizers: install libsentencepiece-dev "
      "and build again");
}

}  // namespace

bool tokenizer_built_in() { return false; }

struct Tokenizer::Model {
  std::string text;
};

Tokenizer::Tokenizer(std::unique_ptr<Model> model) : model_(std::move(model)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::from_bytes(std::string /*bytes*/, std::string /*name*/) {
  return not_built_in();
}

// The functions below are never called, because no Tokenizer can be created.
std::int64_t Tokenizer::size() const { return 0; }
std::vector<std::int64_t> Tokenizer::encode(std::string_view /*text*/) const { return {}; }
std::string Tokenizer::decode(std::span<const std::int64_t> /*tokens*/) const { return {}; }
std::string Tokenizer::piece(std::int64_t /*token*/) const { return {}; }
bool Tokenizer::is_unknown(std::int64_t /*token*/) const { return false; }
const std::string& Tokenizer::bytes() const { return model_->text; }
const std::string& Tokenizer::name() const { return model_->text; }

Result<std::string> train_tokenizer(const TokenizerOptions& /*plan*/,
                                    const std::function<bool(std::string&)>& /*next*/) {
  return not_built_in();
}

}  // namespace octavo_train
