// A LibTorch training loop with 8-bit AdamW states; docs/guides/libtorch.md explains it. Prints the first and
// the last loss and fails when the loss has not fallen.
// SPDX-License-Identifier: MIT
#include <octavo/torch/optim.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::ReLU(), torch::nn::Linear(256, 64));
  const torch::Tensor x = torch::randn({32, 64}), y = torch::randn({32, 64});
  double first = 0, last = 0;

  octavo::torch::AdamW opt(model->parameters(), octavo::torch::AdamWOptions(1e-2).state("8bit"));
  for (int step = 0; step < 50; ++step) {
    opt.zero_grad();
    const torch::Tensor loss = torch::mse_loss(model->forward(x), y);
    loss.backward();
    opt.step();
    (step == 0 ? first : last) = loss.item<double>();
  }

  std::printf("loss %.3f -> %.3f, %lld bytes of state\n", first, last,
              static_cast<long long>(opt.state_bytes()));
  return last < 0.5 * first ? 0 : 1;
}
