// The tokenizer that the files of a model have. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/archive.h"
#include "train/tasks/speech/tokenizer.h"

namespace octavo::train {

// NeMo's `tokenizer.model_path`; of a folder tokenizer.model or tokenizer.json. Its tokens are as many as the
// model's. An error says what there is instead: `model.tokenizer.model` can name a file.
Result<Tokenizer> archive_tokenizer(const SpeechArchive& archive);

}  // namespace octavo::train
