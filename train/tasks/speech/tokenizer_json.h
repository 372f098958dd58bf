// tokenizer.json, in which transformers keeps a tokenizer that was a SentencePiece model: back into one, and
// from one.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/piece_model.h"

#include <octavo/status.h>

#include <string>
#include <string_view>

namespace octavo::train {

// The model that it was made from, as far as encoding and decoding go. What cannot be read without loss is an
// error that says what to give instead. `name` is what errors begin with. Tokens beyond the vocabulary are
// left out: transformers' blank is one.
Result<PieceModel> read_tokenizer_json(std::string_view text, const std::string& name);

// The other way, as transformers' own converter does it. `pad`: the text of the token behind the last one,
// which is the model's blank. An error for models of words or characters, which that format has not.
Result<std::string> write_tokenizer_json(const PieceModel& model, const std::string& pad);

}  // namespace octavo::train
