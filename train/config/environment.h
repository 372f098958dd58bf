// The environment variables that `octavo` sets before it becomes octavo-trainer, because LibTorch and its
// OpenMP runtime read them when they are loaded. The ranks that octavo-trainer starts inherit them.
//
// Torch's allocator: expandable segments let it return and join memory that was cut into pieces of the wrong
// size, so that a run whose batches differ in size does not fail because its free memory is fragmented.
//
// OpenMP: idle threads spin by default, and on a machine with other work they take the processor from the
// threads that compute. With OMP_WAIT_POLICY=passive they sleep instead.
//
// This header needs no LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdlib>
#include <optional>
#include <string>

namespace octavo::train {

inline constexpr const char* kAllocatorVariable = "PYTORCH_ALLOC_CONF";  // which we set
inline constexpr const char* kExpandable = "expandable_segments:True";

struct AllocatorChoice {
  std::string variable;
  std::string value;

  [[nodiscard]] std::string text() const { return variable + "=" + value; }
  [[nodiscard]] bool expandable() const { return value.find(kExpandable) != std::string::npos; }
};

// What the environment says of torch's allocator; none: nothing. A variable that is set and empty is a
// choice, too.
[[nodiscard]] inline std::optional<AllocatorChoice> allocator_choice() {
  // The others are older names of the first, or for one kind of device.
  for (const char* const name :
       std::array{kAllocatorVariable, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}) {
    if (const char* const value = std::getenv(name); value != nullptr) return AllocatorChoice{name, value};
  }
  return std::nullopt;
}

// What octavo-trainer gets: the user's choice, else expandable segments.
[[nodiscard]] inline AllocatorChoice trainer_allocator() {
  return allocator_choice().value_or(AllocatorChoice{kAllocatorVariable, kExpandable});
}

// Sets the allocator's variable for a program that this process becomes.
inline void set_trainer_allocator() {
  const AllocatorChoice choice = trainer_allocator();
  setenv(choice.variable.c_str(), choice.value.c_str(), /*overwrite=*/0);
}

// Lets idle OpenMP threads of a program that this process becomes sleep. A choice of the user stays:
// GOMP_SPINCOUNT (GNU's runtime) and KMP_BLOCKTIME (LLVM's and Intel's) set the same thing in finer steps.
inline void set_trainer_wait_policy() {
  for (const char* const name : {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"})
    if (std::getenv(name) != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
}

// A line for people, about a GPU.
[[nodiscard]] inline std::string allocator_line(const AllocatorChoice& choice) {
  return choice.expandable()
             ? "GPU memory in expandable segments (" + choice.text() + "; set it otherwise to change that)"
             : "GPU memory as " + choice.text() + " says";
}

}  // namespace octavo::train
