// Delayed scaling: ends a step for every tensor's history, in the order of Transformer Engine's kernel.
// SPDX-License-Identifier: MIT
#include "cpu/threads.h"
#include "formula/fp8_scale.h"
#include "fp8/backend.h"
#include "fp8/invalid_argument.h"
#include "optimizers/checks.h"
#include "optimizers/format_resolution.h"
#include "status/first_error.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace octavo::fp8 {
namespace {

constexpr std::int64_t kMostTensors = std::int64_t{1} << 24;

// Starts the next step of a history, and returns the maximum of the previous ones. Ignores NaN.
float roll(std::span<float> history, AmaxAlgo algo) {
  const float recent = history[0];
  float most = 0.0F;
  for (const float amax : history) most = amax > most ? amax : most;
  // Slot 1 has the oldest maximum, which is dropped. A single slot is the complete history.
  std::rotate(history.begin(), history.begin() + 1, history.end());
  history[0] = 0.0F;
  return algo == AmaxAlgo::max ? most : recent;
}

}  // namespace

Status update_scales(const ScaleUpdate& update) {
  if (Status bad = check_call(update.device, update.stream, 0); !bad.ok()) return bad;
  if (Status bad = check_history(update.length, update.algo, update.margin); !bad.ok()) return bad;
  if (update.tensors < 0 || update.tensors > kMostTensors)
    return invalid("tensors", update.tensors, "0 to " + std::to_string(kMostTensors));
  const std::int64_t bytes = 4 * update.tensors * state_floats(update.length);
  if (Status bad = check_buffer(std::string(kWhere) + "states", update.states, bytes, 4); !bad.ok())
    return bad;
  if (update.tensors == 0) return {};
  if (update.device.kind == DeviceKind::cuda) return update_scales_cuda(update);
  const cpu::FloatMode mode;  // scales may be denormal
  for (std::int64_t i = 0; i < update.tensors; ++i) {
    const DelayedTensor tensor = DelayedTensor::at(update.states, update.length, i);
    const std::span history(tensor.history, static_cast<std::size_t>(update.length));
    if (history[0] == 0.0F) continue;
    const float amax = roll(history, update.algo);
    for (const Element element : {Element::e4m3, Element::e5m2}) {
      float& scale = tensor.scales[static_cast<std::size_t>(element)];
      scale = formula::delayed_scale(amax, std::ldexp(largest(element), -update.margin), scale);
    }
  }
  return {};
}

}  // namespace octavo::fp8
