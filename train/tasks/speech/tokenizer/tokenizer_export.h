// Writes a tokenizer in the file formats that other programs read.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace octavo_train {

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
