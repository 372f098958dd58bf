// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer_export.h"

#include "train/format/numbers.h"
#include "train/tasks/speech/piece_model.h"
#include "train/tasks/speech/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace octavo::train {
namespace {

// Transformers' name for blank, unless a token of the vocabulary has it.
std::string blank_text(const PieceModel& model) {
  for (const char* name : {"<pad>", "<blank>"}) {
    if (std::ranges::find(model.pieces, name, &TokenPiece::text) == model.pieces.end()) return name;
  }
  return "<|blank|>";
}

}  // namespace

std::vector<std::string> pieces_of(const Tokenizer& tokenizer) {
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < tokenizer.size(); ++i) out.push_back(tokenizer.piece(i));
  return out;
}

Result<NamedFiles> nemo_tokenizer_files(const Tokenizer& tokenizer) {
  const Result<PieceModel> model = read_piece_model(tokenizer.bytes(), tokenizer.name());
  if (!model.ok()) return model.status();
  std::string scores, names;
  for (const TokenPiece& piece : model->pieces) {
    scores += piece.text + '\t' + significant(static_cast<double>(piece.score), 6) + '\n';
    if (piece.kind != PieceKind::unknown) names += piece.text + '\n';
  }
  return NamedFiles{
      {"tokenizer.model", tokenizer.bytes()}, {"tokenizer.vocab", scores}, {"vocab.txt", names}};
}

Result<NamedFiles> transformers_tokenizer_files(const Tokenizer& tokenizer) {
  const Result<PieceModel> model = read_piece_model(tokenizer.bytes(), tokenizer.name());
  if (!model.ok()) return model.status();
  const std::string blank = blank_text(*model);
  const Result<std::string> json = write_tokenizer_json(*model, blank);
  if (!json.ok()) return json.status();
  const auto unknown = std::ranges::find(model->pieces, PieceKind::unknown, &TokenPiece::kind);
  const nlohmann::ordered_json config = {{"tokenizer_class", "ParakeetTokenizer"},
                                         {"pad_token", blank},
                                         {"unk_token", unknown->text},
                                         {"clean_up_tokenization_spaces", false}};
  return NamedFiles{{"tokenizer.model", tokenizer.bytes()},
                    {"tokenizer.json", *json},
                    {"tokenizer_config.json", config.dump(2) + '\n'}};
}

}  // namespace octavo::train
