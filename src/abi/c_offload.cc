// The C ABI of offload outside an engine: which states leave a device, host memory, traces.
// SPDX-License-Identifier: MIT
#include "abi/c_common.h"

#include <octavo/octavo.h>
#include <octavo/offload.h>

#include <pthread.h>

#include <map>
#include <mutex>

namespace {

using namespace octavo::c;  // NOLINT(google-build-using-namespace)
using octavo::Status;

// The memory that octavo_host_alloc returned, by address.
struct Given {
  std::mutex mutex;
  std::map<void*, octavo::HostMemory> memory;
};
// Never destroyed: tensors of other languages may outlive static objects.
Given& make_given() {
  static auto* const all = new Given;
  // fork() copies a locked mutex, whose owner does not exist in the child. So the thread that forks holds it.
  (void)pthread_atfork([] { all->mutex.lock(); }, [] { all->mutex.unlock(); }, [] { all->mutex.unlock(); });
  return *all;
}
Given& given() {
  static Given& all = make_given();
  return all;
}

}  // namespace

extern "C" {

octavo_status octavo_choose_residences(const octavo_residence_tensor* tensors, int64_t count, uint32_t wanted,
                                       int64_t min_size, double ratio, int64_t budget, uint32_t* out) {
  return guarded([&]() -> Status {
    check_array("tensors", tensors, count);
    if (count > 0) check_given("out", out);
    if (wanted > 2)
      return Status::invalid("[offload] wanted: got " + std::to_string(wanted) + ", expected 0 to 2");
    std::vector<octavo::ResidenceTensor> list;
    for (int64_t i = 0; i < count; ++i) list.push_back({tensors[i].numel, tensors[i].state_bytes});
    const auto chosen =
        octavo::choose_residences(list, {static_cast<octavo::Residence>(wanted), min_size, ratio, budget});
    if (!chosen.ok()) return chosen.status();
    for (std::size_t i = 0; i < chosen->size(); ++i) out[i] = static_cast<uint32_t>((*chosen)[i]);
    return {};
  });
}

octavo_status octavo_host_alloc(int64_t bytes, uint32_t pin, void** out, uint32_t* pinned) {
  return guarded([&]() -> Status {
    check_given("out", out);
    auto memory = octavo::HostMemory::allocate(bytes, pin != 0);
    if (!memory.ok()) return memory.status();
    if (pinned != nullptr) *pinned = memory->pinned() ? 1 : 0;
    if (pin != 0 && !memory->pinned()) (void)report(Status::failed(memory->why_not()));
    *out = memory->data();
    if (*out == nullptr) return {};
    const std::lock_guard lock(given().mutex);
    given().memory.emplace(*out, std::move(*memory));
    return {};
  });
}

void octavo_host_free(void* data) {
  octavo::HostMemory memory;
  (void)guarded([&]() -> Status {
    const std::lock_guard lock(given().mutex);
    if (const auto found = given().memory.find(data); found != given().memory.end()) {
      memory = std::move(found->second);
      given().memory.erase(found);
    }
    return {};
  });
}

int64_t octavo_host_room(void) {
  return value_or<int64_t>(0, [] { return octavo::host_room(); });
}

void octavo_offload_trace(uint32_t on) {
  (void)guarded([&]() -> Status {
    octavo::trace_offload(on != 0);
    return {};
  });
}

octavo_status octavo_offload_trace_note(const char* row, const char* label, double begin, double end) {
  return guarded([&]() -> Status {
    check_given("row", row);
    check_given("label", label);
    octavo::note_offload(row, label, begin, end);
    return {};
  });
}

octavo_status octavo_offload_trace_write(const char* path) {
  return guarded([&]() -> Status {
    check_given("path", path);
    return octavo::write_offload_trace(path);
  });
}

}  // extern "C"
