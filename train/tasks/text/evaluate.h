// The loss of a model on validation text, and text that a model writes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/task.h"
#include "train/tasks/text/text.h"
#include "train/tasks/text/text_model.h"

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

// Bytes [rows, block_size + 1] as tokens on their device: inputs and, one further on, targets.
struct TokenBatch {
  torch::Tensor inputs, targets;
};
TokenBatch to_tokens(const torch::Tensor& bytes);

// Mean cross-entropy in nats per token, in fp32 whatever the logits are.
torch::Tensor text_loss(TextModel& model, const TokenBatch& batch, const DropoutPass& pass = {});

// Of windows of text.
struct TextLosses {
  double sum = 0;
  std::int64_t windows = 0;
};
// The call's share of the windows at `offsets`, `rows` at a time, without dropout. None where it asks for an
// end.
std::optional<TextLosses> evaluate_text(TextModel& model, const TextCorpus& corpus,
                                        const std::vector<std::int64_t>& offsets, std::int64_t block_size,
                                        std::int64_t rows, ComputeType compute_dtype,
                                        const EvaluationCall& call);

struct SampleOptions {
  std::int64_t tokens = 200;
  std::int64_t top_k = 0;  // 0: all
  double temperature = 1.0;
  std::uint64_t seed = 1337;
};

// What follows the prompt, byte by byte; `each`, where given, sees every byte as it comes, and false from it
// ends the text. The model sees at most the last `context` bytes: a text that would grow beyond them starts
// again from its last half, so that a byte costs the same however long the text is. REQUIRES: a prompt,
// context >= 1.
std::string generate(TextModel& model, const std::string& prompt, std::int64_t context,
                     const SampleOptions& options, const torch::Device& device, ComputeType compute_dtype,
                     const std::function<bool(char)>& each = {});

}  // namespace octavo::train
