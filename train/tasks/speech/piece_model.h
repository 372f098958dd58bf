// What a SentencePiece model holds, read from and written to its file (a message of Protocol Buffers),
// without SentencePiece: to make one of a tokenizer in another format, and the other way round.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// Numbers are the format's own.
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
  float score = 0;  // of unigram: a log-probability; of BPE: the larger, the earlier it is merged
  PieceKind kind = PieceKind::normal;
};

struct PieceModel {
  std::vector<TokenPiece> pieces;  // by token
  PieceAlgorithm algorithm = PieceAlgorithm::unigram;
  bool byte_fallback = false;
  std::string charsmap;  // how characters are normalized, in a form of SentencePiece's own; empty: not at all
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Parts that PieceModel has not are left out. `name` is what errors begin with. Character maps that
// SentencePiece cannot follow safely are an error: see charsmap.h.
Result<PieceModel> read_piece_model(std::string_view bytes, const std::string& name);
std::string write_piece_model(const PieceModel& model);

}  // namespace octavo::train
