// The loss of a model on validation text, and text generation.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/task.h"
#include "train/tasks/text/bdh.h"
#include "train/tasks/text/text.h"

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

// Bytes [rows, block_size + 1] as tokens on the bytes' device: the inputs, and the targets, which are one
// token ahead.
struct TokenBatch {
  torch::Tensor inputs, targets;
};
TokenBatch to_tokens(const torch::Tensor& bytes);

// Returns the mean cross-entropy in nats per token, in fp32 whatever the dtype of the logits.
torch::Tensor text_loss(TextModel& model, const TokenBatch& batch, const DropoutKey& pass = {});

// The sum of the losses of windows of text, and their number.
struct TextLosses {
  double sum = 0;
  std::int64_t windows = 0;
};
// Evaluates the rank's share of the windows at `offsets`, `rows` windows at a time, without dropout. Returns
// no value if call.stop() returns true.
std::optional<TextLosses> evaluate_text(TextModel& model, const TextCorpus& corpus,
                                        const std::vector<std::int64_t>& offsets, std::int64_t block_size,
                                        std::int64_t rows, ComputeType compute_dtype,
                                        const EvaluationCall& call);

struct SampleOptions {
  std::int64_t tokens = 200;
  std::int64_t top_k = 0;  // 0: all tokens
  double temperature = 1.0;
  std::uint64_t seed = 1337;
};

// Generates the text after the prompt, byte by byte, and returns it. `each`, if given, is called with every
// new byte; if it returns false, the text ends. The model sees at most the last `context` bytes. A text that
// would grow beyond them begins again with its last half, so that the cost of a byte does not depend on the
// length of the text. REQUIRES: a prompt of at least one byte, context >= 1.
std::string generate(TextModel& model, const std::string& prompt, std::int64_t context,
                     const SampleOptions& options, const torch::Device& device, ComputeType compute_dtype,
                     const std::function<bool(char)>& each = {});

}  // namespace octavo_train
