// The environment variables of torch's allocator. Expandable segments let it return and join what was cut
// into pieces of the wrong size, so a run whose batches differ in size does not end for want of memory that
// is only scattered. LibTorch reads the variables when it is loaded: `octavo` sets one before it becomes
// octavo-trainer. No LibTorch here.
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

// For a program that this process becomes.
inline void set_trainer_allocator() {
  const AllocatorChoice choice = trainer_allocator();
  setenv(choice.variable.c_str(), choice.value.c_str(), /*overwrite=*/0);
}

// A line for people, about a GPU.
[[nodiscard]] inline std::string allocator_line(const AllocatorChoice& choice) {
  return choice.expandable()
             ? "GPU memory in expandable segments (" + choice.text() + "; set it otherwise to change that)"
             : "GPU memory as " + choice.text() + " says";
}

}  // namespace octavo::train
