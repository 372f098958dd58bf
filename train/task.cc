// SPDX-License-Identifier: MIT
#include "train/task.h"

#include "train/base/numbers.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

namespace octavo_train {
namespace {

torch::Tensor copied(const torch::Tensor& tensor, const torch::Device& device) {
  if (device.is_cpu()) return tensor;
  // A copy is asynchronous only from pinned memory.
  const bool pins = device.is_cuda();
  return (pins ? tensor.pin_memory() : tensor).to(device, /*non_blocking=*/pins);
}

const torch::Tensor& found(const NamedTensors& tensors, std::string_view name) {
  for (const auto& [each, tensor] : tensors) {
    if (each == name) return tensor;
  }
  TORCH_CHECK(false, "a batch has no tensor of the name ", name);
}

}  // namespace

const torch::Tensor& Batch::at(std::string_view name) const { return found(tensors, name); }
const torch::Tensor& Batch::on_host(std::string_view name) const { return found(host, name); }

std::vector<std::string> TaskText::smaller_limits(std::int64_t parts) const {
  std::vector<std::string> out;
  if (limited_rows < parts) return out;
  for (const auto& [key, value, integer] : limits)
    out.push_back(integer ? fmt::format("{}={}", key, static_cast<std::int64_t>(value) / parts)
                          : key + "=" + significant(value / static_cast<double>(parts), 6));
  return out;
}

Result<OpenTask> open_task(const Settings& settings) {
  OpenTask out{make_task(settings.task), {}};
  ASSIGN_OR_RETURN(auto data, out.task->open({settings, "", nullptr}));
  out.data = std::move(data);
  return out;
}

Batch to_device(Batch batch, const torch::Device& device) {
  for (auto& [name, tensor] : batch.tensors) tensor = copied(tensor, device);
  return batch;
}

torch::Tensor draw_numbers(const Batch& batch, const torch::Device& device) {
  const torch::Tensor numbers = torch::empty({static_cast<std::int64_t>(batch.draws.size())}, torch::kInt64);
  std::copy(batch.draws.begin(), batch.draws.end(), numbers.data_ptr<std::int64_t>());
  return copied(numbers, device);
}

}  // namespace octavo_train
