// SPDX-License-Identifier: MIT
#include "train/nn/fake.h"

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

}  // namespace octavo_train
