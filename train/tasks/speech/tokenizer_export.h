// A tokenizer in the files that other programs read.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/tokenizer.h"

#include <octavo/status.h>

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

// tokenizer.json and tokenizer_config.json for AutoTokenizer, and tokenizer.model. Blank is the token behind
// the last one, as in the model's config.json.
Result<NamedFiles> transformers_tokenizer_files(const Tokenizer& tokenizer);

}  // namespace octavo::train
