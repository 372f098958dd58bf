// Converts text to tokens and back with a SentencePiece model, the format of the tokenizers in NeMo's
// archives, and writes a tokenizer's files for other programs. Does not use LibTorch; only sentencepiece.cc
// includes SentencePiece's headers. In a build without it, opening a tokenizer is an error that names the
// package.
//
//   auto tokenizer = octavo_train::Tokenizer::open("tokenizer.model");
//   if (tokenizer.ok()) use(tokenizer->encode("three blue boats"));
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/speech/config/model_settings.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {

[[nodiscard]] bool tokenizer_built_in();

// A tokenizer. Copies share the model. Several threads may call its functions concurrently.
class Tokenizer {
 public:
  // Opens a SentencePiece model, a Hugging Face tokenizer.json that was made from a SentencePiece model, or a
  // folder that contains tokenizer.model or tokenizer.json.
  static Result<Tokenizer> open(const std::string& path);
  // Creates a tokenizer from the bytes of either file. Error messages begin with `name`.
  static Result<Tokenizer> from_bytes(std::string bytes, std::string name);

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
  explicit Tokenizer(std::shared_ptr<const Model> model) : model_(std::move(model)) {}
  std::shared_ptr<const Model> model_;
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

using NamedFiles = std::map<std::string, std::string>;  // contents by name

// Returns the piece of every token, in order.
std::vector<std::string> pieces_of(const Tokenizer& tokenizer);

// Returns the files that NeMo's script writes: tokenizer.model, tokenizer.vocab (pieces and scores) and
// vocab.txt (all pieces except the unknown one). A folder with these files is a valid `tokenizer.dir`.
Result<NamedFiles> nemo_tokenizer_files(const Tokenizer& tokenizer);

// Returns the name of the blank token, which follows the last token of the tokenizer. transformers uses the
// name to choose the decoding: a tokenizer with `<blank>` belongs to a transducer, any other to CTC, where
// repeated tokens are merged.
std::string transformers_blank(const Tokenizer& tokenizer, SpeechHead head);

// Returns tokenizer.json and tokenizer_config.json, which AutoTokenizer loads, and tokenizer.model. `pad` is
// the token that pads short texts, as in the model's config.json.
Result<NamedFiles> transformers_tokenizer_files(const Tokenizer& tokenizer, SpeechHead head,
                                                std::int64_t pad);

}  // namespace octavo_train
