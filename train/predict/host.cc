// SPDX-License-Identifier: MIT
#include "train/predict/host.h"

#include "train/device/device.h"
#include "train/distributed/agreement.h"
#include "train/optim/precision.h"
#include "train/predict/trace_device.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

namespace octavo_train {
namespace {

using torch::Tensor;

// A small model that launches the same kinds of kernels as a language or speech model: blocks of norms,
// matmuls, unfused attention and elementwise work. It draws no random numbers.
class Layers {
 public:
  explicit Layers(const torch::Device& device)
      : device_(device), input_(torch::ones({kRows, kLength, kWidth}, torch::TensorOptions(device))) {
    const auto weight = [&](torch::IntArrayRef sizes, torch::ScalarType type = torch::kBFloat16) {
      return torch::full(sizes, 0.01, torch::TensorOptions(device).dtype(type)).requires_grad_();
    };
    for (Block& block : blocks_) {
      block.norm = weight({kWidth}, torch::kFloat32);
      block.attend = weight({3 * kWidth, kWidth});
      block.project = weight({kWidth, kWidth});
      block.up = weight({4 * kWidth, kWidth});
      block.bias = weight({4 * kWidth});
      block.down = weight({kWidth, 4 * kWidth});
    }
  }

  void step() {
    Tensor loss;
    {
      const AutocastScope autocast(device_, ComputeType::bfloat16);
      Tensor x = input_;
      for (Block& block : blocks_) x = run(block, x);
      loss = x.mean();
    }
    loss.backward();
    for (Block& block : blocks_)
      for (const Tensor* each :
           {&block.norm, &block.attend, &block.project, &block.up, &block.bias, &block.down})
        each->mutable_grad().reset();
  }

 private:
  static constexpr std::int64_t kRows = 2, kLength = 16, kWidth = 64, kHeads = 4;
  struct Block {
    Tensor norm, attend, project, up, bias, down;
  };

  static Tensor run(const Block& block, const Tensor& x) {
    const auto normed = [&](const Tensor& of) { return torch::layer_norm(of, {kWidth}, block.norm); };
    const auto heads = torch::linear(normed(x), block.attend)
                           .view({kRows, kLength, 3, kHeads, kWidth / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const Tensor scores = torch::softmax(torch::matmul(heads[0], heads[1].transpose(-2, -1)), -1);
    const Tensor attended = torch::matmul(scores, heads[2]).transpose(1, 2).reshape(x.sizes());
    const Tensor y = x + torch::linear(attended, block.project);
    return y + torch::linear(torch::silu(torch::linear(normed(y), block.up, block.bias)), block.down);
  }

  torch::Device device_;
  Tensor input_;
  std::array<Block, 12> blocks_;
};

// Returns the number of kernel launches of a step, counted as plans count them.
std::int64_t launches_of_step() {
  TraceDevice fake;
  Layers layers(TraceDevice::device());
  fake.forget_kernels();
  layers.step();
  TraceDevice::forget_casts();
  std::int64_t out = 0;
  for (const FakeKernel& each : fake.kernels()) out += each.kernel.launches;
  return out;
}

}  // namespace

Result<double> measure_launch(const torch::Device& device) {
  constexpr int kWarm = 3;
  // In ten measurements of the speech model a launch took 0.89 to 1.14 times as long as in these layers, 1.05
  // times on average.
  constexpr double kOfModels = 1.05;
  try {
    const std::int64_t launches = launches_of_step();
    Layers layers(device);
    for (int i = 0; i < kWarm; ++i) layers.step();
    // Takes the median over a period of kEnough seconds, because the speed of a shared host varies.
    constexpr double kEnough = 0.4;
    std::vector<double> seconds;
    for (double all = 0; all < kEnough; all += seconds.back()) {
      wait_for(device);
      const auto begin = std::chrono::steady_clock::now();
      layers.step();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    wait_for(device);
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::ranges::nth_element(seconds, middle);
    return kOfModels * *middle / static_cast<double>(launches);
  } catch (const c10::Error& error) {
    return Status::failed("the host's speed could not be measured: " + error_text(error));
  }
}

}  // namespace octavo_train
