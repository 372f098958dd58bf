// Sets environment variables before `octavo` executes octavo-trainer in the same process, because LibTorch
// and its OpenMP runtime read them when they are loaded. The ranks that octavo-trainer starts inherit them.
//
// PyTorch's allocator: expandable segments let it release and merge memory that was split into blocks of the
// wrong size, so that a run whose batches differ in size does not fail because of fragmentation.
//
// OpenMP: idle threads spin by default, and on a machine with other work they take CPU time from the threads
// that compute. With OMP_WAIT_POLICY=passive they sleep instead.
//
// This header does not include LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdlib>
#include <optional>
#include <string>

namespace octavo_train {

inline constexpr const char* kAllocatorVariable = "PYTORCH_ALLOC_CONF";  // the variable that octavo sets
inline constexpr const char* kExpandable = "expandable_segments:True";

struct AllocatorChoice {
  std::string variable;
  std::string value;

  [[nodiscard]] std::string text() const { return variable + "=" + value; }
  [[nodiscard]] bool expandable() const { return value.find(kExpandable) != std::string::npos; }
};

// Returns the setting of PyTorch's allocator in the environment; nullopt if there is none. A variable that is
// set but empty counts as a setting.
[[nodiscard]] inline std::optional<AllocatorChoice> allocator_choice() {
  // The other names are older, or specific to one kind of device.
  for (const char* const name :
       std::array{kAllocatorVariable, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"})
    if (const char* const value = std::getenv(name); value != nullptr) return AllocatorChoice{name, value};
  return std::nullopt;
}

// Returns the allocator setting of octavo-trainer: the user's setting if there is one, else expandable
// segments.
[[nodiscard]] inline AllocatorChoice trainer_allocator() {
  return allocator_choice().value_or(AllocatorChoice{kAllocatorVariable, kExpandable});
}

// Sets the allocator's variable for the program that this process executes next (execv).
inline void set_trainer_allocator() {
  const AllocatorChoice choice = trainer_allocator();
  setenv(choice.variable.c_str(), choice.value.c_str(), /*overwrite=*/0);
}

// Makes idle OpenMP threads sleep in the program that this process executes next (execv). A setting of the
// user is kept: GOMP_SPINCOUNT (GNU's runtime) and KMP_BLOCKTIME (LLVM's and Intel's) control the same
// behaviour in finer steps.
inline void set_trainer_wait_policy() {
  for (const char* const name : {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"})
    if (std::getenv(name) != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
}

// Returns the line that a run on a GPU logs about the allocator.
[[nodiscard]] inline std::string allocator_line(const AllocatorChoice& choice) {
  return choice.expandable() ? "GPU memory is allocated in expandable segments (" + choice.text() +
                                   "; set this variable to change it)"
                             : "GPU memory is allocated as set by " + choice.text();
}

}  // namespace octavo_train
