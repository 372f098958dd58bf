// Converts text to tokens and back with a SentencePiece model, the format of the tokenizers in NeMo's
// archives. Does not use LibTorch; only tokenizer.cc includes SentencePiece's headers. In a build without
// SentencePiece, opening a tokenizer is an error that names the package to install.
//
//   auto tokenizer = octavo_train::Tokenizer::open("tokenizer.model");
//   if (tokenizer.ok()) use(tokenizer->encode("three blue boats"));
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

[[nodiscard]] bool tokenizer_built_in();

// A tokenizer. It can be moved. Several threads may call its const functions concurrently.
class Tokenizer {
 public:
  // Opens a SentencePiece model, a Hugging Face tokenizer.json that was made from a SentencePiece model, or a
  // folder that contains tokenizer.model or tokenizer.json.
  static Result<Tokenizer> open(const std::string& path);
  // Creates a tokenizer from the bytes of either file. Error messages begin with `name`.
  static Result<Tokenizer> from_bytes(std::string bytes, std::string name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  [[nodiscard]] std::int64_t size() const;  // tokens are 0 … size() - 1, without the model's blank
  [[nodiscard]] std::vector<std::int64_t> encode(std::string_view text) const;
  // REQUIRES, here and below: tokens from 0 to size() - 1.
  [[nodiscard]] std::string decode(std::span<const std::int64_t> tokens) const;
  [[nodiscard]] std::string piece(std::int64_t token) const;  // as stored: U+2581 begins a word
  [[nodiscard]] bool is_unknown(std::int64_t token) const;    // true for the unknown token
  [[nodiscard]] const std::string& bytes() const;             // the SentencePiece model, as its file has it
  [[nodiscard]] const std::string& name() const;              // path or name that it was opened with

 private:
  struct Model;
  explicit Tokenizer(std::unique_ptr<Model> model);
  std::unique_ptr<Model> model_;
};

struct TokenizerOptions {
  std::int64_t vocabulary = 1024;
  std::string kind = "bpe";               // or unigram, char, word: SentencePiece's names
  double character_coverage = 1.0;        // fraction of characters that become tokens
  bool byte_fallback = false;             // characters without a token are encoded as byte tokens
  std::vector<std::string> symbols = {};  // texts that are always one token each
};

// Trains a SentencePiece model on the lines that `next` stores, until it returns false, and returns the
// model's bytes. The same lines in the same order give the same bytes. Like the models of NeMo's script, the
// vocabulary has no tokens for the begin and the end of a sentence.
Result<std::string> train_tokenizer(const TokenizerOptions& plan,
                                    const std::function<bool(std::string&)>& next);

}  // namespace octavo_train
