// SPDX-License-Identifier: MIT
#include "train/run/duration.h"

#include "train/base/numbers.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace octavo_train {
namespace {

constexpr double kHour = 3600;

}  // namespace

double cpu_matmul_rate(ComputeType type) {
  constexpr std::int64_t kSize = 1024, kTimes = 3;
  const torch::NoGradGuard no_grad;
  const auto dtype = type == ComputeType::float32    ? torch::kFloat32
                     : type == ComputeType::bfloat16 ? torch::kBFloat16
                                                     : torch::kFloat16;
  const torch::Tensor a = torch::ones({kSize, kSize}, dtype);
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < kTimes; ++i) {  // the first one sets the library up
    const auto begin = std::chrono::steady_clock::now();
    torch::mm(a, a);
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  constexpr auto kEdge = static_cast<double>(kSize);
  return 2 * kEdge * kEdge * kEdge / least;
}

std::string long_run_note(const Settings& settings, const std::string& shorter, std::int64_t step,
                          std::int64_t steps, double seconds, bool on_cpu, const std::string& how) {
  const double left = static_cast<double>(steps - step) * seconds;
  if (left < kHour) return {};
  std::string out = "this run will take " + how + " " + duration_text(left) + ": " +
                    std::to_string(steps - step) + " steps of " + duration_text(seconds) +
                    " each. To make it shorter: ";
  if (on_cpu) out += "train on a GPU (training.device is the CPU here); ";
  out += shorter;
  const auto hour = static_cast<std::int64_t>(kHour / seconds);
  if (settings.training.max_steps && hour > 0)
    out += "; fewer steps (max_steps=" + std::to_string(step + hour) + " takes an hour)";
  return out;
}

}  // namespace octavo_train
