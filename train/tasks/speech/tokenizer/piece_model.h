// Reads and writes the file of a SentencePiece model (a Protocol Buffers message) without SentencePiece, to
// convert tokenizers from and to other formats.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// The values are those of the file format.
enum class PieceKind : std::uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};
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
// `name`. Returns an error if the character map is one that SentencePiece cannot follow safely: see
// charsmap.h.
Result<PieceModel> read_piece_model(std::string_view bytes, const std::string& name);
std::string write_piece_model(const PieceModel& model);

}  // namespace octavo_train
