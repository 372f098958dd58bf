// Implements tokenizer.h in a build without SentencePiece: every function that creates a tokenizer returns an
// error.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer/tokenizer.h"

namespace octavo_train {
namespace {

Status not_built_in() {
  return Status::unsupported(
      "this build has no SentencePiece, so it cannot read or train tokenizers: install libsentencepiece-dev "
      "and build again");
}

}  // namespace

struct Tokenizer::Model {
  std::string text;
};

bool tokenizer_built_in() { return false; }
Result<Tokenizer> Tokenizer::from_bytes(std::string, std::string) { return not_built_in(); }
Result<std::string> train_tokenizer(const TokenizerOptions&, const std::function<bool(std::string&)>&) {
  return not_built_in();
}

// The functions below are never called, because no Tokenizer can be created.
std::int64_t Tokenizer::size() const { return 0; }
std::vector<std::int64_t> Tokenizer::encode(std::string_view) const { return {}; }
std::string Tokenizer::decode(std::span<const std::int64_t>) const { return {}; }
std::string Tokenizer::piece(std::int64_t) const { return {}; }
bool Tokenizer::is_unknown(std::int64_t) const { return false; }
const std::string& Tokenizer::bytes() const { return model_->text; }
const std::string& Tokenizer::name() const { return model_->text; }

}  // namespace octavo_train
