// Finds a tokenizer's file, and writes a tokenizer in the formats of NeMo and transformers; see tokenizer.h.
// SPDX-License-Identifier: MIT
#include "train/io/files.h"
#include "train/base/numbers.h"
#include "train/base/terminal_text.h"
#include "train/base/utf8.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/tokenizer/piece_model.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace octavo_train {
namespace {

constexpr std::uint64_t kLargestTokenizer = 64 << 20;  // bytes; tokenizers have a few MB

// Reads the tokenizer's model and refuses pieces that cannot be written as JSON.
Result<PieceModel> read_for_export(const Tokenizer& tokenizer) {
  Result<PieceModel> model = read_piece_model(tokenizer.bytes(), tokenizer.name());
  if (!model.ok()) return model;
  for (std::size_t i = 0; i < model->pieces.size(); ++i) {
    if (is_utf8(model->pieces[i].text)) continue;
    return invalid_error(
        "{}: token {} is \"{}\", which is not UTF-8, so other programs cannot read the "
        "tokenizer; train a tokenizer on text in UTF-8",
        tokenizer.name(), i, terminal_text(model->pieces[i].text));
  }
  return model;
}

}  // namespace

Result<Tokenizer> Tokenizer::open(const std::string& path) {
  std::string file = path;
  if (is_folder(path)) {
    file = path + "/tokenizer.model";
    if (!path_exists(file)) file = path + "/tokenizer.json";
    if (!path_exists(file))
      return Status::invalid(path +
                             ": the folder has no tokenizer.model and no tokenizer.json; give the file of a "
                             "SentencePiece model");
  }
  ASSIGN_OR_RETURN(std::string bytes, read_text_file(file, kLargestTokenizer));
  return from_bytes(std::move(bytes), file);
}

std::vector<std::string> pieces_of(const Tokenizer& tokenizer) {
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < tokenizer.size(); ++i) out.push_back(tokenizer.piece(i));
  return out;
}

Result<NamedFiles> nemo_tokenizer_files(const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const PieceModel model, read_for_export(tokenizer));
  std::string scores, names;
  for (const TokenPiece& piece : model.pieces) {
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
  ASSIGN_OR_RETURN(const PieceModel model, read_for_export(tokenizer));
  const std::string blank = transformers_blank(tokenizer, head);
  ASSIGN_OR_RETURN(const std::string json, write_tokenizer_json(model, blank));
  const auto unknown = std::ranges::find(model.pieces, PieceKind::unknown, &TokenPiece::kind);
  const nlohmann::ordered_json config = {{"tokenizer_class", "ParakeetTokenizer"},
                                         {"pad_token", pad < tokenizer.size() ? tokenizer.piece(pad) : blank},
                                         {"unk_token", unknown->text},
                                         {"clean_up_tokenization_spaces", false}};
  return NamedFiles{{"tokenizer.model", tokenizer.bytes()},
                    {"tokenizer.json", json},
                    {"tokenizer_config.json", config.dump(2) + '\n'}};
}

}  // namespace octavo_train
