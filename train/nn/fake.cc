// SPDX-License-Identifier: MIT
#include "train/nn/fake.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

namespace octavo_train {

const FakeRecorder*& fake_recorder() {
  thread_local const FakeRecorder* current = nullptr;
  return current;
}

bool is_fake_cpu(const torch::Tensor& x) {
  const FakeRecorder* const recorder = fake_recorder();
  return x.is_meta() && recorder != nullptr && recorder->of_cpu;
}
bool is_fake_gpu(const torch::Tensor& x) { return x.is_meta() && !is_fake_cpu(x); }

void record_kernel(const char* name, at::TensorList uses, std::int64_t launches) {
  const FakeRecorder* const recorder = fake_recorder();
  if (recorder == nullptr || !recorder->kernel) return;
  double bytes = 0;
  for (const torch::Tensor& each : uses)
    if (each.defined()) bytes += static_cast<double>(each.numel()) * static_cast<double>(each.element_size());
  recorder->kernel(name, bytes, launches);
}

void record_matmul(const char* name, const FakeMatmul& product, torch::ScalarType type) {
  const FakeRecorder* const recorder = fake_recorder();
  if (recorder != nullptr && recorder->product) recorder->product(name, product, type);
}

namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Records one matmul for all inputs, then one matmul per position, in sequence.
void record_lstm(std::int64_t batch, std::int64_t length, std::int64_t inputs, std::int64_t width,
                 std::int64_t times) {
  for (std::int64_t i = 0; i < times; ++i) {
    record_matmul("lstm", {1, batch * length, 4 * width, inputs}, torch::kFloat32);
    for (std::int64_t t = 0; t < length; ++t)
      record_matmul("lstm", {1, batch, 4 * width, width}, torch::kFloat32);
  }
}

struct FakeLstm : torch::autograd::Function<FakeLstm> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& together,
                        std::int64_t width) {
    const std::int64_t batch = x.size(0), length = x.size(1);
    const Tensor out = torch::empty({batch, length, width}, x.options());
    // Saved for each position: four gates, the cell and its tanh.
    const Tensor kept = torch::empty({length, batch, 6 * width}, x.options());
    const Tensor workspace = torch::empty({length, batch, 4 * width}, x.options());
    record_lstm(batch, length, x.size(2), width, 1);
    context->save_for_backward({x, together, out, kept});
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*grads*/) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &out = saved[2];
    const Tensor workspace = torch::empty({x.size(1), x.size(0), 4 * out.size(2)}, x.options());
    record_lstm(x.size(0), x.size(1), x.size(2), out.size(2), 2);
    return {torch::empty_like(x), torch::empty_like(saved[1]), Tensor()};
  }
};

}  // namespace

Tensor fake_lstm(const Tensor& x, const Tensor& weights, std::int64_t width) {
  return FakeLstm::apply(x, weights, width);
}

}  // namespace octavo_train
