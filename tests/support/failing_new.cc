// The operators new and delete of a test whose memory can run out. They are in a separate file, because a
// compiler that inlines one of a pair warns about the other.
// SPDX-License-Identifier: MIT
#include "tests/support/failing_new.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local std::int64_t test::allocations_left = -1;

namespace {

using test::allocations_left;

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  const std::size_t whole = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, whole);
}
void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t at) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(at));
}
void* operator new[](std::size_t bytes, std::align_val_t at) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(at));
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  return allocate(bytes, alignof(std::max_align_t));
}
void* operator new[](std::size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  return allocate(bytes, alignof(std::max_align_t));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*unused*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t /*unused*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*unused*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t /*unused*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*unused*/, std::align_val_t /*unused*/) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t /*unused*/, std::align_val_t /*unused*/) noexcept {
  std::free(memory);
}
