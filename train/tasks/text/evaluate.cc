// SPDX-License-Identifier: MIT
#include "train/tasks/text/evaluate.h"

#include "train/optim/precision.h"

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>

namespace octavo_train {
namespace {

// Passes a growing text to a model.
class Writer {
 public:
  Writer(TextModel& model, std::int64_t context, const torch::Device& device, ComputeType compute_dtype)
      : model_(model), context_(context), device_(device), compute_dtype_(compute_dtype) {}

  // Returns the logits of the byte after `text`, on the CPU, in fp32. REQUIRES: `text` begins with the text
  // of the previous call.
  torch::Tensor next_logits(const std::string& text) {
    const auto size = static_cast<std::int64_t>(text.size());
    if (seen_ == nullptr || size - first_ > context_) {
      const std::int64_t kept = seen_ == nullptr ? context_ : std::max<std::int64_t>(context_ / 2, 1);
      first_ = known_ = std::max<std::int64_t>(size - kept, 0);
      seen_ = model_.begin_text();
    }
    const std::string_view news = std::string_view(text).substr(static_cast<std::size_t>(known_));
    known_ = size;
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): only read
    auto* const bytes = const_cast<char*>(news.data());
    const torch::Tensor tokens =
        torch::from_blob(bytes, {static_cast<std::int64_t>(news.size())}, torch::kUInt8)
            .to(torch::kInt64)
            .to(device_);
    const AutocastScope autocast(device_, compute_dtype_);
    return seen_->append(tokens).to(torch::kFloat32).cpu();
  }

 private:
  TextModel& model_;
  std::int64_t context_;
  torch::Device device_;
  ComputeType compute_dtype_;
  std::unique_ptr<GenerationState> seen_;
  std::int64_t first_ = 0, known_ = 0;  // the model has seen text[first_, known_)
};

std::int64_t choose(torch::Tensor logits, const SampleOptions& options, at::Generator& generator) {
  // top_k 1 keeps exactly one token, although many logits may be equal in low precision.
  if (options.temperature <= 0 || options.top_k == 1) return logits.argmax().item<std::int64_t>();
  if (options.top_k > 0 && options.top_k < logits.numel()) {
    const torch::Tensor least = std::get<0>(logits.topk(options.top_k))[-1];
    logits = logits.masked_fill(logits < least, -INFINITY);
  }
  // The logits are in double and relative to the largest, because a small temperature would overflow
  // otherwise.
  const torch::Tensor warm = (logits.to(torch::kFloat64) - logits.max()) / options.temperature;
  return torch::multinomial(torch::softmax(warm, -1), 1, false, generator).item<std::int64_t>();
}

}  // namespace

TokenBatch to_tokens(const torch::Tensor& bytes) {
  // Only bytes are copied to the device, which then widens them.
  const torch::Tensor tokens = bytes.to(torch::kInt64);
  return {tokens.slice(1, 0, tokens.size(1) - 1), tokens.slice(1, 1)};
}

torch::Tensor text_loss(TextModel& model, const TokenBatch& batch, const DropoutKey& pass) {
  const torch::Tensor logits = model.forward(batch.inputs, pass).to(torch::kFloat32);
  return torch::nn::functional::cross_entropy(logits.reshape({-1, logits.size(-1)}),
                                              batch.targets.reshape(-1));
}

std::optional<TextLosses> evaluate_text(TextModel& model, const TextCorpus& corpus,
                                        const std::vector<std::int64_t>& offsets, std::int64_t block_size,
                                        std::int64_t rows, ComputeType compute_dtype,
                                        const EvaluationCall& call) {
  const torch::NoGradGuard no_grad;
  const EvalScope scope(model);
  const auto row = static_cast<std::size_t>(block_size) + 1, together = static_cast<std::size_t>(rows);
  const torch::Device& device = call.device;
  torch::Tensor sum = torch::zeros({}, torch::TensorOptions(torch::kFloat64).device(device));
  TextLosses out;
  for (std::size_t first = static_cast<std::size_t>(call.rank) * together; first < offsets.size();
       first += static_cast<std::size_t>(call.ranks) * together) {
    if (call.stop()) return std::nullopt;
    const std::size_t count = std::min(offsets.size() - first, together);
    const auto batch = static_cast<std::int64_t>(count);
    const torch::Tensor bytes = torch::empty({batch, block_size + 1}, torch::kUInt8);
    const std::span<std::uint8_t> all(bytes.data_ptr<std::uint8_t>(), count * row);
    for (std::size_t i = 0; i < count; ++i) corpus.read(offsets[first + i], all.subspan(i * row, row));
    const Batch there = to_device({{{"bytes", bytes}}, {}}, device);
    const AutocastScope autocast(device, compute_dtype);
    sum += (text_loss(model, to_tokens(there.at("bytes"))) * batch).to(sum.device(), torch::kFloat64);
    out.windows += batch;
  }
  out.sum = sum.item<double>();
  return out;
}

std::string generate(TextModel& model, const std::string& prompt, std::int64_t context,
                     const SampleOptions& options, const torch::Device& device, ComputeType compute_dtype,
                     const std::function<bool(char)>& each) {
  const torch::NoGradGuard no_grad;
  const EvalScope scope(model);
  Writer writer(model, context, device, compute_dtype);
  // The generator is separate and on the CPU, so that the same seed gives the same choices on every device.
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::string text = prompt;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    text += static_cast<char>(choose(writer.next_logits(text), options, generator));
    if (each && !each(text.back())) break;
  }
  return text.substr(prompt.size());
}

}  // namespace octavo_train
