// What an engine keeps for a tensor whose state is in host memory: copies, and fences of what is under way.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/grad_sums.h"
#include "offload/host_arena.h"
#include "offload/offloaded_step.h"

#include <octavo/engine.h>

#include <limits>
#include <memory>

namespace octavo::offload {

struct Offloaded {
  static constexpr std::uint32_t kLast = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t order = kLast;  // Engine::set_order

  // host: the parameter's copy in host memory. Stale: it must be made before it is used.
  HostBuffer copy;
  bool stale = true;
  Fence copied;

  // The gradient in host memory: complete when `complete` has passed, and with it, where they were taken, its
  // sums (`summed`). What was read of it by the last step: `released`.
  HostBuffer held;
  bool holds = false;
  DType held_dtype = DType::f32, taken_dtype = DType::f32;
  bool has_sums = false;
  std::shared_ptr<GradSums> sums;  // written by the host's queue
  Fence complete, summed;
  PendingFence released;

  // When gradients in device memory were read: by take, by a step.
  Fence taken;
  PendingFence read;
  PendingFence weight;  // when it is up to date
};

}  // namespace octavo::offload
