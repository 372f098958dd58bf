// Converts between a SentencePiece model and tokenizer.json, the format in which transformers stores a
// tokenizer that was converted from one.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/speech/tokenizer/piece_model.h"

#include <string>
#include <string_view>

namespace octavo_train {

// Converts a tokenizer.json to a SentencePiece model that encodes and decodes identically. If the conversion
// would lose information, returns an error that names the file to use instead. Error messages begin with
// `name`. Tokens beyond the vocabulary are omitted, such as the blank token of transformers.
Result<PieceModel> read_tokenizer_json(std::string_view text, const std::string& name);

// Converts a SentencePiece model to tokenizer.json, as the converter of transformers does. `pad` is the text
// of the token after the last one, which is the model's blank. Returns an error for models of words or
// characters, because the format does not support them.
Result<std::string> write_tokenizer_json(const PieceModel& model, const std::string& pad);

}  // namespace octavo_train
