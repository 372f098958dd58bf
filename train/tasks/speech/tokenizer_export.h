// A tokenizer in the files that other programs read.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/model_settings.h"
#include "train/tasks/speech/tokenizer.h"

#include <octavo/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace octavo::train {

using NamedFiles = std::map<std::string, std::string>;  // contents by name

// Every token's piece, in order.
std::vector<std::string> pieces_of(const Tokenizer& tokenizer);

// As NeMo's script writes them: tokenizer.model, tokenizer.vocab (pieces and scores) and vocab.txt (pieces
// but the unknown one). A folder with them is a `tokenizer.dir`.
Result<NamedFiles> nemo_tokenizer_files(const Tokenizer& tokenizer);

// Returns the name of the blank token, which follows the last token of the tokenizer. transformers decides by
// it: a tokenizer with `<blank>` belongs to a transducer, any other to CTC, whose repeated tokens it merges.
std::string transformers_blank(const Tokenizer& tokenizer, SpeechHead head);

// tokenizer.json and tokenizer_config.json for AutoTokenizer, and tokenizer.model. `pad` is the token that
// fills up short texts, as in the model's config.json.
Result<NamedFiles> transformers_tokenizer_files(const Tokenizer& tokenizer, SpeechHead head,
                                                std::int64_t pad);

}  // namespace octavo::train
