// Text as tokens and back: a SentencePiece model, as NeMo's archives have one. No LibTorch; SentencePiece's
// headers stay in tokenizer.cc. Built without SentencePiece, opening one is an error that says what to
// install.
//
//   auto tokenizer = octavo::train::Tokenizer::open("tokenizer.model");
//   if (tokenizer.ok()) use(tokenizer->encode("three blue boats"));
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

[[nodiscard]] bool tokenizer_built_in();

// May be moved. Its const functions may be called by several threads at once.
class Tokenizer {
 public:
  // A SentencePiece model, a tokenizer.json of Hugging Face that was made from one, or a folder with
  // tokenizer.model or tokenizer.json in it.
  static Result<Tokenizer> open(const std::string& path);
  // The bytes of either file. `name` is what errors begin with.
  static Result<Tokenizer> from_bytes(std::string bytes, std::string name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  [[nodiscard]] std::int64_t size() const;  // tokens are 0 … size() - 1; the model's blank is none of them
  [[nodiscard]] std::vector<std::int64_t> encode(std::string_view text) const;
  // REQUIRES, here and below: tokens from 0 to size() - 1.
  [[nodiscard]] std::string decode(std::span<const std::int64_t> tokens) const;
  [[nodiscard]] std::string piece(std::int64_t token) const;  // as it is stored: U+2581 begins a word
  [[nodiscard]] bool is_unknown(std::int64_t token) const;    // stands for what no other token has
  [[nodiscard]] const std::string& bytes() const;  // the SentencePiece model, to be written to a file
  [[nodiscard]] const std::string& name() const;   // where it came from

 private:
  struct Model;
  explicit Tokenizer(std::unique_ptr<Model> model);
  std::unique_ptr<Model> model_;
};

struct TokenizerPlan {
  std::int64_t vocabulary = 1024;
  std::string kind = "bpe";               // or unigram, char, word: SentencePiece's names
  double character_coverage = 1.0;        // the share of characters that get a token of their own
  bool byte_fallback = false;             // a character without a token is written as bytes, which are tokens
  std::vector<std::string> symbols = {};  // texts that are one token each, wherever they stand
};

// A SentencePiece model as bytes, trained on the lines that `next` gives until it gives false. The same lines
// in the same order give the same bytes. The vocabulary has no begin and no end of a sentence, as NeMo's
// script makes it.
Result<std::string> train_tokenizer(const TokenizerPlan& plan, const std::function<bool(std::string&)>& next);

}  // namespace octavo::train
