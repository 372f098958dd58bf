// SPDX-License-Identifier: MIT
#include "train/device/memory.h"

#include "train/base/numbers.h"
#include "train/config/environment.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Logging.h>
#include <torch/torch.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

constexpr int kErrors = 2;  // torch's log level that omits warnings

c10::DeviceAllocator* allocator_of(const torch::Device& device) {
  if (device.is_cpu()) return nullptr;
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

// Returns the device's free and total bytes. The second overload is for an older LibTorch, which does not
// report them.
template <class Allocator>
auto room(Allocator& allocator, c10::DeviceIndex index, int) -> decltype(allocator.getMemoryInfo(index)) {
  return allocator.getMemoryInfo(index);
}
template <class Allocator>
std::pair<std::size_t, std::size_t> room(Allocator& /*allocator*/, c10::DeviceIndex /*index*/, long) {
  return {0, 0};
}

std::int64_t signed_of(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }

}  // namespace

DeviceMemory device_memory(const torch::Device& device) {
  DeviceMemory out;
  c10::DeviceAllocator* allocator = allocator_of(device);
  if (allocator == nullptr || !allocator->initialized()) return out;
  const auto stats = allocator->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  out.allocated = stats.allocated_bytes[kAll].current;
  out.peak = stats.allocated_bytes[kAll].peak;
  out.reserved = stats.reserved_bytes[kAll].current;
  const auto [free, total] = room(*allocator, device.index(), 0);
  out.free = signed_of(free);
  out.total = signed_of(total);
  return out;
}

void reset_peak(const torch::Device& device) {
  c10::DeviceAllocator* allocator = allocator_of(device);
  if (allocator != nullptr && allocator->initialized()) allocator->resetPeakStats(device.index());
}

void release_cached_memory(const torch::Device& device) {
  c10::DeviceAllocator* allocator = allocator_of(device);
  if (allocator != nullptr && allocator->initialized()) allocator->emptyCache();
}

std::int64_t host_memory() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0, resident = 0;
  if (!(file >> pages >> resident)) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

class PeakMeter::Counter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*pointer*/, std::int64_t size, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device device) override {
    if (!device.is_cpu()) return;
    const std::int64_t now = now_.fetch_add(size) + size;
    std::int64_t peak = peak_.load();
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  [[nodiscard]] std::int64_t peak() const { return peak_.load(); }
  [[nodiscard]] std::int64_t now() const { return now_.load(); }
  void restart() { peak_.store(now_.load()); }

 private:
  std::atomic<std::int64_t> now_{0}, peak_{0};
};

PeakMeter::PeakMeter(const torch::Device& device) : device_(device) {
  if (device.is_cpu()) {
    counter_ = std::make_shared<Counter>();
    // torch warns about every thousandth freed block that was allocated before counting began. Here counting
    // starts in mid-run on purpose.
    log_level_before_ = std::exchange(FLAGS_caffe2_log_level, std::max(FLAGS_caffe2_log_level, kErrors));
    guard_ = std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, counter_);
  } else {
    reset_peak(device);
    start_ = device_memory(device).allocated;
  }
}
PeakMeter::~PeakMeter() {
  if (counter_ != nullptr) FLAGS_caffe2_log_level = log_level_before_;
}

std::int64_t PeakMeter::bytes() const {
  return counter_ != nullptr ? counter_->peak() : device_memory(device_).peak - start_;
}

std::int64_t PeakMeter::now() const {
  return counter_ != nullptr ? counter_->now() : device_memory(device_).allocated - start_;
}

void PeakMeter::restart() {
  if (counter_ != nullptr)
    counter_->restart();
  else
    reset_peak(device_);
}

std::vector<std::string> memory_table(const MemoryByOwner& owners) {
  std::vector<std::pair<const char*, std::int64_t>> rows = {
      {"weights", owners.params},        {"gradients", owners.grads},     {"optimizer states", owners.states},
      {"master bits", owners.master},    {"workspace", owners.workspace}, {"activations", owners.activations},
      {"peak of a step", owners.peak()},
  };
  if (owners.communication > 0) rows.insert(rows.end() - 2, {"communication", owners.communication});
  if (owners.fp8 > 0) rows.insert(rows.begin() + 1, {"FP8 codes", owners.fp8});
  std::vector<std::string> out;
  for (const auto& [owner, bytes] : rows) {
    const double share =
        100.0 * static_cast<double>(bytes) / static_cast<double>(std::max<std::int64_t>(owners.peak(), 1));
    out.push_back(fmt::format("  {:<18}{:>10}{:>7}%", owner, bytes_text(bytes), fixed(share, 1)));
  }
  if (owners.host() > 0) {
    out.push_back(fmt::format(
        "  in host memory: {} of optimizer states, {} of master bits, {} of copies of weights and gradients",
        bytes_text(owners.host_states), bytes_text(owners.host_master), bytes_text(owners.host_copies)));
  }
  return out;
}

std::string explain_out_of_memory(const std::string& what, const MemoryByOwner& owners,
                                  const DeviceMemory& device, const TaskMemory& task) {
  std::string out = fmt::format(
      "out of memory: {}\n  held by: weights {}, gradients {}, optimizer states {}, master bits {}, "
      "workspace {}",
      what, bytes_text(owners.params), bytes_text(owners.grads), bytes_text(owners.states),
      bytes_text(owners.master), bytes_text(owners.workspace));
  if (owners.communication > 0) out += ", communication " + bytes_text(owners.communication);
  if (owners.fp8 > 0) out += ", FP8 codes of weights " + bytes_text(owners.fp8);
  if (owners.host() > 0) out += "; besides " + bytes_text(owners.host()) + " in host memory";
  // Activations are unknown on the CPU.
  if (owners.activations > 0) out += ", activations and the rest " + bytes_text(owners.activations);
  if (device.reserved > 0) {
    // The memory of the micro-batches is free again by now, so the peak counts.
    const std::int64_t loose = std::max<std::int64_t>(device.reserved - device.peak, 0);
    out += fmt::format("\n  torch's allocator holds {}, of which {} is not in use (cache and fragmentation)",
                       bytes_text(device.reserved), bytes_text(loose));
    if (device.total > 0)
      out += fmt::format("; the device has {}, {} free", bytes_text(device.total), bytes_text(device.free));
  }
  out += "\n  the micro-batch had " + task.batch;
  std::vector<std::string> helps = task.helps;
  const auto choice = allocator_choice();
  if (device.reserved - device.peak > device.reserved / 10 && !(choice && choice->expandable())) {
    helps.push_back(
        fmt::format("the environment variable {}={} (less fragmentation)", kAllocatorVariable, kExpandable));
  }
  out += "\n  what would help:";
  if (helps.empty()) out += " a smaller model or a device with more memory";
  for (const std::string& help : helps) out += "\n    " + help;
  return out;
}

}  // namespace octavo_train
