// SPDX-License-Identifier: MIT
#include "tests/images/task.h"

#include "tests/images/generator.h"
#include "train/optim/precision.h"
#include "train/tasks/entry.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace octavo_train {
namespace {

constexpr const char* kPixels = "pixels";  // [rows, 1, size, size], uint8
constexpr const char* kLabels = "labels";  // [rows], int64
constexpr const char* kSeed = "generator_seed";
constexpr std::uint64_t kFirstValidation = std::uint64_t{1} << 40;  // number of the first validation image

}  // namespace

std::unique_ptr<Task> make_images_task() { return std::make_unique<ImageTask>(); }

void ImageTask::set_settings(const Settings& settings) {
  settings_ = settings;
  images_ = settings.task_settings.get<ImageSettings>();
  net_ = settings.task_settings.get<ConvNetSettings>();
}

Result<TaskData> ImageTask::open(const OpenArgs& args) {
  set_settings(args.settings);
  TaskData out{.samples = images_.train_images, .record = {{kSeed, images_.generator_seed}}};
  if (args.record == nullptr) return out;
  const auto then = args.record->at(kSeed).get<std::int64_t>(), now = images_.generator_seed;
  if (then != now) {
    out.change.changed.push_back("data.generator_seed: the images were those of " + std::to_string(then) +
                                 ", and are those of " + std::to_string(now));
  }
  return out;
}

std::unique_ptr<Task> ImageTask::copy_without_model() const {
  auto out = std::make_unique<ImageTask>();
  out->set_settings(settings_);
  return out;
}

TaskModel ImageTask::build(const Settings& settings) {
  set_settings(settings);
  model_ = std::make_shared<ConvNetImpl>(net_, images_.classes);
  return {.module = model_};
}

Batch ImageTask::draw(const std::vector<std::uint64_t>& numbers) const {
  const auto rows = static_cast<std::int64_t>(numbers.size());
  const std::int64_t size = images_.image_size;
  const auto each = static_cast<std::size_t>(size * size);
  const torch::Tensor pixels = torch::empty({rows, 1, size, size}, torch::kUInt8);
  const torch::Tensor labels = torch::empty({rows}, torch::kInt64);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    labels.data_ptr<std::int64_t>()[i] =
        draw_image(images_, numbers[i], {pixels.data_ptr<std::uint8_t>() + i * each, each});
  }
  return {{{kPixels, pixels}, {kLabels, labels}}, {}};
}

Batch ImageTask::read(const Order& order, std::uint64_t first, std::int64_t rows) const {
  std::vector<std::uint64_t> draws, numbers;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(rows); ++i) {
    draws.push_back(first + i);
    numbers.push_back(static_cast<std::uint64_t>(order.sample(first + i)));
  }
  Batch out = draw(numbers);
  out.draws = std::move(draws);
  return out;
}

// Returns fp32 logits; the model may compute in another type.
torch::Tensor ImageTask::logits(const Batch& batch) {
  return model_->forward(batch.at(kPixels).to(torch::kFloat32) / 127.5 - 1).to(torch::kFloat32);
}

torch::Tensor ImageTask::loss(const Batch& batch, const PassKey& /*key*/) {
  return torch::nn::functional::cross_entropy(logits(batch), batch.at(kLabels));
}

std::optional<Tally> ImageTask::evaluate_shard(const EvaluationCall& call) {
  const torch::NoGradGuard no_grad;
  const EvalScope scope(*model_);
  const AutocastScope autocast(call.device, settings_.training.compute_dtype);
  const std::int64_t most = settings_.data.max_eval_samples,
                     rows = settings_.training.per_device_eval_batch_size;
  const std::int64_t all = most < 0 ? images_.validation_images : std::min(images_.validation_images, most);
  double loss = 0, right = 0;
  std::int64_t count = 0;
  for (std::int64_t first = call.rank * rows; first < all; first += call.ranks * rows) {
    if (call.stop()) return std::nullopt;
    std::vector<std::uint64_t> numbers;
    for (std::int64_t i = first; i < std::min(first + rows, all); ++i)
      numbers.push_back(kFirstValidation + static_cast<std::uint64_t>(i));
    const Batch batch = to_device(draw(numbers), call.device);
    const torch::Tensor scores = logits(batch), &labels = batch.at(kLabels);
    loss += torch::nn::functional::cross_entropy(scores, labels,
                                                 torch::nn::CrossEntropyLossOptions().reduction(torch::kSum))
                .item<double>();
    right += (scores.argmax(1) == labels).sum().item<double>();
    count += static_cast<std::int64_t>(numbers.size());
  }
  return Tally{{loss, right}, count};
}

Evaluation ImageTask::summarize(const Tally& all) const {
  const auto count = static_cast<double>(all.units);
  return {{{"loss", all.sums[0] / count, Better::lower}, {"accuracy", all.sums[1] / count, Better::higher}},
          all.units};
}

std::optional<Preview> ImageTask::preview(const torch::Device& device,
                                          const std::function<bool()>& /*stop*/) {
  const torch::NoGradGuard no_grad;
  const EvalScope scope(*model_);
  const Batch image = draw({kFirstValidation});
  const AutocastScope autocast(device, settings_.training.compute_dtype);
  const torch::Tensor chances = logits(to_device(image, device)).softmax(1)[0].cpu();
  const auto best = chances.argmax().item<std::int64_t>();
  const std::string verdict = "class " + std::to_string(best) + ", for it is " +
                              std::to_string(image.at(kLabels).item<std::int64_t>()) + '\n';
  std::string picture;
  for (std::int64_t i = 0; i < images_.image_size * images_.image_size; ++i) {
    picture += image.at(kPixels).data_ptr<std::uint8_t>()[i] < 128 ? ". " : "# ";
    if ((i + 1) % images_.image_size == 0) picture += '\n';
  }
  return Preview{"an image", '\n' + verdict + picture, {{"prompt", verdict}, {"text", picture}}};
}

TaskText ImageTask::text() const {
  TaskText out{.unit = {"images", "img"}};
  const std::string side = std::to_string(images_.image_size), count = std::to_string(images_.train_images);
  out.introduction = {count + " images to train on, " + std::to_string(images_.validation_images) +
                      " to evaluate on, of " + std::to_string(images_.classes) + " classes"};
  out.start["data"] = count + " images to train";
  out.batch = [side](std::int64_t rows) {
    return std::to_string(rows) + " images of " + side + " x " + side + " pixels";
  };
  if (net_.width > 1)
    out.memory_advice = {"model.width=" + std::to_string(net_.width / 2) + " (a smaller model)"};
  out.speed_advice = "a smaller model (width is " + std::to_string(net_.width) +
                     "); fewer or smaller images in a step (per_device_train_batch_size is " +
                     std::to_string(settings_.training.per_device_train_batch_size) + ", image_size is " +
                     side + ')';
  return out;
}

}  // namespace octavo_train
