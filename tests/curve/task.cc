// The task `curve`: a network with one hidden layer learns the sine curve. This file is the complete task.
// SPDX-License-Identifier: MIT
#include "train/config/checks.h"
#include "train/config/task_config.h"
#include "train/tasks/entry.h"

namespace octavo_train {

// The settings of this task. Both parts below find them by their type.
struct CurveSettings {
  std::int64_t width = 0, points = 0, held_out = 0;
};

}  // namespace octavo_train

#ifdef OCTAVO_TASK_CONFIG  // the config: compiled without LibTorch

namespace octavo_train {
namespace {

std::vector<Key> keys() {
  using C = CurveSettings;
  return {
      {"model.name", Setting{field(&ModelSettings::name, word({"mlp"})), "mlp"}, "which model to train"},
      {"model.width", Setting{field(&C::width, integer(1, 4096)), "32"}, "neurons of the hidden layer"},
      {"data.points", Setting{field(&C::points, integer(1, kMaxSize)), "1024"}, "points to train on"},
      {"data.held_out", Setting{field(&C::held_out, integer(1, kMaxSize)), "64"}, "points to evaluate on"},
  };
}

Status check(const Config& config) {
  const auto& settings = config.settings.task_settings.get<CurveSettings>();
  if (settings.held_out <= settings.points) return {};
  return clash_error(config, "data.held_out", "data.points", "held_out must be at most points");
}

}  // namespace

TaskConfig curve_task_config() {
  return {.name = "curve",
          .meaning = "A network that learns the sine curve.",
          .models = "mlp",
          .metrics = {"loss"},
          .example = "model: {name: mlp}\n",
          .takes = [](std::string_view model) { return model == "mlp"; },
          .keys = keys,
          .check = check,
          .check_complete = [](const Config& /*config*/) { return Status(); }};
}

}  // namespace octavo_train

#else  // the task: compiled with LibTorch

#include "train/optim/precision.h"
#include "train/task.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace octavo_train {
namespace {

class CurveTask : public Task {
 public:
  Result<TaskData> open(const OpenArgs& args) override {
    set(args.settings);
    return TaskData{.samples = curve_.points, .record = {{"points", curve_.points}}};
  }
  [[nodiscard]] std::unique_ptr<Task> copy_without_model() const override {
    auto out = std::make_unique<CurveTask>();
    out->set(settings_);
    return out;
  }
  TaskModel build(const Settings& settings) override {
    set(settings);
    model_ = torch::nn::Sequential(torch::nn::Linear(1, curve_.width), torch::nn::Tanh(),
                                   torch::nn::Linear(curve_.width, 1));
    return {.module = model_.ptr()};
  }

  [[nodiscard]] Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const override {
    std::vector<std::int64_t> numbers;
    Batch out;
    for (std::uint64_t draw = first; draw < first + static_cast<std::uint64_t>(rows); ++draw) {
      numbers.push_back(order.sample(draw));
      out.draws.push_back(draw);
    }
    out.tensors = points(numbers, 0);
    return out;
  }
  torch::Tensor loss(const Batch& batch, const PassKey& /*key*/) override { return squares(batch).mean(); }

  std::optional<Tally> evaluate_shard(const EvaluationCall& call) override {
    const torch::NoGradGuard no_grad;
    const EvalScope scope(*model_);
    const AutocastScope autocast(call.device, settings_.training.compute_dtype);
    const std::int64_t rows = settings_.training.per_device_eval_batch_size;
    Tally out{.sums = {0}};
    for (std::int64_t first = call.rank * rows; first < curve_.held_out; first += call.ranks * rows) {
      if (call.stop()) return std::nullopt;
      std::vector<std::int64_t> numbers;
      for (std::int64_t i = first; i < std::min(first + rows, curve_.held_out); ++i)
        numbers.push_back(i * curve_.points / curve_.held_out);
      Batch batch;
      batch.tensors = points(numbers, 0.5);  // between those to train on
      out.sums[0] += squares(to_device(std::move(batch), call.device)).sum().item<double>();
      out.units += static_cast<std::int64_t>(numbers.size());
    }
    return out;
  }
  [[nodiscard]] Evaluation summarize(const Tally& all) const override {
    return {{{"loss", all.sums[0] / static_cast<double>(all.units), Better::lower}}, all.units};
  }
  [[nodiscard]] TaskText text() const override {
    TaskText out{.unit = {"points", "pt"}};
    out.introduction = {std::to_string(curve_.points) + " points of a sine curve"};
    out.batch = [](std::int64_t rows) { return std::to_string(rows) + " points"; };
    out.speed_advice = "a smaller model (width is " + std::to_string(curve_.width) + ")";
    return out;
  }

 private:
  void set(const Settings& settings) {
    settings_ = settings;
    curve_ = settings.task_settings.get<CurveSettings>();
  }
  // Returns the points of these numbers, each moved by `shift` of the distance between two points.
  [[nodiscard]] NamedTensors points(const std::vector<std::int64_t>& numbers, double shift) const {
    const auto rows = static_cast<std::int64_t>(numbers.size());
    const torch::Tensor x = torch::empty({rows, 1}), y = torch::empty({rows, 1});
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double part = (static_cast<double>(numbers[i]) + shift) / static_cast<double>(curve_.points);
      const double angle = std::numbers::pi * (2 * part - 1);
      x.data_ptr<float>()[i] = static_cast<float>(angle);
      y.data_ptr<float>()[i] = static_cast<float>(std::sin(angle));
    }
    return {{"x", x}, {"y", y}};
  }
  // Returns the squared error of each row, in fp32.
  torch::Tensor squares(const Batch& batch) {
    return (model_->forward(batch.at("x")).to(torch::kFloat32) - batch.at("y")).square();
  }

  Settings settings_;
  CurveSettings curve_;
  torch::nn::Sequential model_{nullptr};
};

}  // namespace

std::unique_ptr<Task> make_curve_task() { return std::make_unique<CurveTask>(); }

}  // namespace octavo_train

#endif
