// Reads the tokenizer that is stored with a model. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

namespace octavo_train {

// Reads the file that NeMo's `tokenizer.model_path` names, or tokenizer.model or tokenizer.json of a folder.
// Returns an error if the number of tokens differs from the model's vocabulary. Error messages advise to set
// `model.tokenizer.model`, which can name another file.
Result<Tokenizer> archive_tokenizer(const SpeechArchive& archive);

}  // namespace octavo_train
