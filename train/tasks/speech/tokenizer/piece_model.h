// Reads and writes a SentencePiece model without SentencePiece: its own file (a Protocol Buffers message),
// and tokenizer.json, the format in which transformers stores a tokenizer that was converted from one.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// The values are those of the file format.
enum class PieceKind : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
enum class PieceAlgorithm : std::uint8_t { unigram = 1, bpe = 2, word = 3, character = 4 };

struct TokenPiece {
  std::string text;
  float score = 0;  // unigram: a log-probability; BPE: pieces with larger scores are merged first
  PieceKind kind = PieceKind::normal;
};

struct PieceModel {
  std::vector<TokenPiece> pieces;  // indexed by token
  PieceAlgorithm algorithm = PieceAlgorithm::unigram;
  bool byte_fallback = false;
  std::string charsmap;  // SentencePiece's normalization rules for characters; empty: none
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Parses a SentencePiece model. Fields that PieceModel does not have are ignored. Error messages begin with
// `name`. Returns an error if check_charsmap() does.
Result<PieceModel> read_piece_model(std::string_view bytes, const std::string& name);
std::string write_piece_model(const PieceModel& model);

// Checks a character map (`precompiled_charsmap`): a trie in a double array, and the texts that its leaves
// refer to. SentencePiece follows the trie without bounds checks, so the trie of a model is checked before
// SentencePiece reads it. Returns an error if a search could read outside the map. An empty map is valid.
Status check_charsmap(std::string_view charsmap);

// Converts a tokenizer.json to a SentencePiece model that encodes and decodes identically. If the conversion
// would lose information, returns an error that names the file to use instead. Error messages begin with
// `name`. Tokens beyond the vocabulary are omitted, such as the blank token of transformers.
Result<PieceModel> read_tokenizer_json(std::string_view text, const std::string& name);

// Converts a SentencePiece model to tokenizer.json, as the converter of transformers does. `pad` is the text
// of the token after the last one, which is the model's blank. Returns an error for models of words or
// characters, because the format does not support them.
Result<std::string> write_tokenizer_json(const PieceModel& model, const std::string& pad);

}  // namespace octavo_train
