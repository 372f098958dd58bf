// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer/tokenizer_export.h"

#include "train/base/numbers.h"
#include "train/base/terminal_text.h"
#include "train/tasks/speech/manifest/json_line.h"
#include "train/tasks/speech/tokenizer/piece_model.h"
#include "train/tasks/speech/tokenizer/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace octavo_train {
namespace {

// Reads the tokenizer's model and refuses pieces that cannot be written as JSON.
Result<PieceModel> read_for_export(const Tokenizer& tokenizer) {
  Result<PieceModel> model = read_piece_model(tokenizer.bytes(), tokenizer.name());
  if (!model.ok()) return model;
  for (std::size_t i = 0; i < model->pieces.size(); ++i) {
    std::string_view rest = model->pieces[i].text;
    while (!rest.empty()) {
      const std::size_t length = utf8_length(rest);
      if (length == 0) {
        return Status::invalid(tokenizer.name() + ": token " + std::to_string(i) + " is \"" +
                               terminal_text(model->pieces[i].text) +
                               "\", which is not UTF-8, so other programs cannot read the tokenizer; train a "
                               "tokenizer on text in UTF-8");
      }
      rest.remove_prefix(length);
    }
  }
  return model;
}

}  // namespace

std::vector<std::string> pieces_of(const Tokenizer& tokenizer) {
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < tokenizer.size(); ++i) out.push_back(tokenizer.piece(i));
  return out;
}

Result<NamedFiles> nemo_tokenizer_files(const Tokenizer& tokenizer) {
  const Result<PieceModel> model = read_for_export(tokenizer);
  if (!model.ok()) return model.status();
  std::string scores, names;
  for (const TokenPiece& piece : model->pieces) {
    scores += piece.text + '\t' + significant(static_cast<double>(piece.score), 6) + '\n';
    if (piece.kind != PieceKind::unknown) names += piece.text + '\n';
  }
  return NamedFiles{
      {"tokenizer.model", tokenizer.bytes()}, {"tokenizer.vocab", scores}, {"vocab.txt", names}};
}

std::string transformers_blank(const Tokenizer& tokenizer, SpeechHead head) {
  const std::vector<std::string> pieces = pieces_of(tokenizer);
  const std::string usual = head == SpeechHead::ctc ? "<pad>" : "<blank>";
  return std::ranges::find(pieces, usual) == pieces.end() ? usual : "<|blank|>";
}

Result<NamedFiles> transformers_tokenizer_files(const Tokenizer& tokenizer, SpeechHead head,
                                                std::int64_t pad) {
  const Result<PieceModel> model = read_for_export(tokenizer);
  if (!model.ok()) return model.status();
  const std::string blank = transformers_blank(tokenizer, head);
  const Result<std::string> json = write_tokenizer_json(*model, blank);
  if (!json.ok()) return json.status();
  const auto unknown = std::ranges::find(model->pieces, PieceKind::unknown, &TokenPiece::kind);
  const nlohmann::ordered_json config = {{"tokenizer_class", "ParakeetTokenizer"},
                                         {"pad_token", pad < tokenizer.size() ? tokenizer.piece(pad) : blank},
                                         {"unk_token", unknown->text},
                                         {"clean_up_tokenization_spaces", false}};
  return NamedFiles{{"tokenizer.model", tokenizer.bytes()},
                    {"tokenizer.json", *json},
                    {"tokenizer_config.json", config.dump(2) + '\n'}};
}

}  // namespace octavo_train
