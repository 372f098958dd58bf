// What torch's autocast calls a device. In a namespace that no name of torch's hides, for headers that do not
// want the rest of the adapter.
// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/DeviceType.h>

namespace octavo {

// Tensors without memory (meta) have none of their own: a plan gives them that of a device that no build has.
inline c10::DeviceType autocast_type(c10::DeviceType device) {
  return device == c10::DeviceType::Meta ? c10::DeviceType::PrivateUse1 : device;
}

}  // namespace octavo
