// SPDX-License-Identifier: MIT
#include "train/device/device.h"

#include "train/config/checks.h"
#include "train/config/settings.h"
#include "train/data/mix.h"

#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <octavo/backend.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace octavo_train {
namespace {

constexpr std::int64_t kAlwaysCpuRanks = 2;  // allows several ranks on a machine with one processor

c10::Stream stream_of(const torch::Device& device) {
  return c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
}

std::int64_t visible_gpus() {
  return torch::cuda::is_available() ? static_cast<std::int64_t>(torch::cuda::device_count()) : 0;
}

const char* why_no_gpu() { return torch::hasCUDA() ? "is there a GPU and a driver?" : "it is a CPU build"; }

// Returns an error if the config names a GPU by its index: ranks use the GPUs in their order.
Status no_named_gpu(const Config& config) {
  const DeviceName& wanted = config.settings.training.device;
  if (!wanted.index) return {};
  return invalid_error(
      "{}: training.device: got cuda:{}, but the run has several ranks, and each takes the GPU of its "
      "number on its machine; use device: cuda, and CUDA_VISIBLE_DEVICES to choose among the GPUs",
      config.origin("training.device").where(), *wanted.index);
}

std::string got_num_gpus(const Config& config) {
  return fmt::format("{}: training.num_gpus: got {}", config.origin("training.num_gpus").where(),
                     *config.settings.training.num_gpus);
}

// Returns an error if `num_gpus` requests GPUs on a machine without any. Only `device: cpu` trains on the CPU
// then.
Status any_gpu(const Config& config) {
  const auto& asked = config.settings.training.num_gpus;
  const bool automatic = config.settings.training.device.kind == DeviceName::Kind::automatic;
  if (asked.value_or(1) == 1 || !automatic || visible_gpus() > 0) return {};
  return unsupported_error(
      "{}, but this LibTorch sees no GPU ({}); use num_gpus: 1, or device: cpu to train in {} "
      "processes on the CPU",
      got_num_gpus(config), why_no_gpu(), *asked);
}

// Limits the CPU ranks to one per processor.
Status few_cpu_ranks(const Config& config) {
  const std::int64_t processors = sysconf(_SC_NPROCESSORS_ONLN);
  const std::int64_t most = std::max(processors, kAlwaysCpuRanks);
  const bool cpu = config.settings.training.device.kind == DeviceName::Kind::cpu;
  if (!cpu || *config.settings.training.num_gpus <= most) return {};
  return invalid_error(
      "{}, but with device: cpu the limit is {} ranks on this machine, which has {} logical processors; "
      "use num_gpus: {} or fewer",
      got_num_gpus(config), most, processors, most);
}

Status enough_gpus(const Config& config, std::int64_t ranks) {
  const DeviceName::Kind kind = config.settings.training.device.kind;
  const std::int64_t gpus = visible_gpus();
  const bool on_gpus = kind == DeviceName::Kind::cuda || (kind == DeviceName::Kind::automatic && gpus > 0);
  if (!on_gpus || gpus == 0 || ranks <= gpus) return {};
  return unsupported_error(
      "{} ranks on this machine need a GPU each, but there are {}; use num_gpus: {} (or as many tasks of "
      "the launcher), or device: cpu",
      ranks, gpus, gpus);
}

}  // namespace

Result<torch::Device> choose_device(const DeviceName& wanted) {
  using Kind = DeviceName::Kind;
  const std::int64_t gpus = visible_gpus();
  switch (wanted.kind) {
    case Kind::cpu:
      return torch::Device(torch::kCPU);
    case Kind::automatic:
      if (gpus == 0) return torch::Device(torch::kCPU);
      break;
    case Kind::cuda:
      if (gpus == 0) {
        return unsupported_error(
            "training.device: cuda was asked for, but this LibTorch sees no CUDA device ({}); use device: "
            "auto or cpu",
            why_no_gpu());
      }
      break;
  }
  const int index = wanted.index.value_or(0);
  if (index >= gpus) {
    return unsupported_error(
        "training.device: cuda:{} was asked for, but there are {} CUDA devices, from cuda:0; use one of them",
        index, gpus);
  }
  return torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(index));
}

Result<RankInfo> rank_info_of(const Config& config) {
  Result<RankInfo> place =
      rank_from_environment([](const char* name) -> const char* { return std::getenv(name); });
  if (!place.ok() || !place->grouped()) return place;
  const auto& asked = config.settings.training.num_gpus;
  if (asked && *asked != place->local_ranks && *asked != place->ranks) {
    return invalid_error(
        "{}, but {} ranks were started, {} of them on this machine; omit num_gpus "
        "where torchrun or Slurm starts them",
        got_num_gpus(config), place->ranks, place->local_ranks);
  }
  return place;
}

bool starts_ranks(const Config& config, const RankInfo& place) {
  return !place.grouped() && config.settings.training.num_gpus.value_or(1) > 1;
}

Status can_start_ranks(const Config& config) {
  RETURN_IF_ERROR(no_named_gpu(config));
  // Fails if the requested device does not exist.
  RETURN_IF_ERROR(choose_device(config.settings.training.device));
  RETURN_IF_ERROR(any_gpu(config));
  RETURN_IF_ERROR(few_cpu_ranks(config));
  RETURN_IF_ERROR(enough_gpus(config, *config.settings.training.num_gpus));
  return with_context(
      config.origin("training.global_batch_size").where(),
      status_of(accumulation_for(config.settings.training, *config.settings.training.num_gpus)));
}

Result<torch::Device> rank_device(const Config& config, const RankInfo& place) {
  const DeviceName& wanted = config.settings.training.device;
  if (!place.grouped()) return choose_device(wanted);
  if (place.ranks > 1) {
    RETURN_IF_ERROR(no_named_gpu(config));
    RETURN_IF_ERROR(any_gpu(config));
  }
  auto device = choose_device(wanted);
  if (!device.ok() || !device->is_cuda() || wanted.index || place.one_gpu_each) return device;
  RETURN_IF_ERROR(enough_gpus(config, place.local_ranks));
  return torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(place.local_rank));
}

Status check_backend(const torch::Device& device) {
  if (device.is_cpu()) return {};
  const auto error = [&](const std::string& why) {
    return unsupported_error("training.device: {} cannot train: {}; or use device: cpu", device.str(), why);
  };
  if (!octavo::has_cuda()) {
    return error("this build of octavo has no CUDA code; build octavo with CUDA (OCTAVO_CUDA=ON, with nvcc)");
  }
  const Result<octavo::GpuInfo> gpu = octavo::gpu_info(device.index());
  if (!gpu.ok()) return error(gpu.status().message());
  return gpu->usable ? Status() : error(fmt::format("{}: {}", gpu->name, gpu->note));
}

bool has_bf16(const torch::Device& device) {
  if (!device.is_cuda()) return true;
  const octavo::GpuReport report = octavo::list_gpus();
  const auto index = static_cast<std::size_t>(device.index());
  return index < report.gpus.size() && has_bfloat16_units(report.gpus[index].compute_major);
}

std::string device_text(const torch::Device& device) {
  if (device.is_cpu()) return fmt::format("cpu ({} threads)", at::get_num_threads());
  std::string out = device.str();
  if (device.is_cuda()) {
    const octavo::GpuReport report = octavo::list_gpus();
    const auto index = static_cast<std::size_t>(device.index());
    if (index < report.gpus.size()) out += ' ' + report.gpus[index].name;
  }
  return out;
}

void wait_for(const torch::Device& device) {
  if (!device.is_cpu()) stream_of(device).synchronize();
}

void seed_random(std::int64_t seed, std::int64_t step, std::int64_t pass) {
  std::uint64_t key = mix(static_cast<std::uint64_t>(seed) + kGoldenGamma);
  key = mix(key ^ mix(static_cast<std::uint64_t>(step) + 2 * kGoldenGamma));
  torch::manual_seed(mix(key ^ mix(static_cast<std::uint64_t>(pass) + 3 * kGoldenGamma)));
}

struct Stopwatch::Events {
  explicit Events(const torch::Device& device)
      : begin(device.type(), c10::EventFlag::BACKEND_DEFAULT),
        end(device.type(), c10::EventFlag::BACKEND_DEFAULT) {}
  c10::Event begin, end;
};

Stopwatch::Stopwatch(const torch::Device& device)
    : device_(device), events_(device.is_cpu() ? nullptr : std::make_unique<Events>(device)) {}
Stopwatch::~Stopwatch() = default;
Stopwatch::Stopwatch(Stopwatch&&) noexcept = default;
Stopwatch& Stopwatch::operator=(Stopwatch&&) noexcept = default;

void Stopwatch::start() {
  if (events_ == nullptr)
    begin_ = std::chrono::steady_clock::now();
  else
    events_->begin.record(stream_of(device_));
}

void Stopwatch::stop() {
  if (events_ == nullptr)
    end_ = std::chrono::steady_clock::now();
  else
    events_->end.record(stream_of(device_));
}

double Stopwatch::seconds() const {
  if (events_ == nullptr) return std::chrono::duration<double>(end_ - begin_).count();
  events_->end.synchronize();
  return events_->begin.elapsedTime(events_->end) / 1e3;
}

}  // namespace octavo_train
