// Checks of buffers: each must exist and be aligned, and none that is written may overlap another.
// SPDX-License-Identifier: MIT
#pragma once

#include "fp8/invalid_argument.h"
#include "optimizers/checks.h"

#include <span>
#include <string>

namespace octavo::fp8 {

struct Buffer {
  const char* name;
  const void* data;
  std::int64_t bytes;
  std::int64_t alignment;
  bool written;

  [[nodiscard]] std::span<const std::byte> span() const {
    return {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)};
  }
};

inline Status check_buffers(std::span<const Buffer> buffers) {
  for (const Buffer& buffer : buffers) {
    if (Status bad =
            check_buffer(kWhere + std::string(buffer.name), buffer.data, buffer.bytes, buffer.alignment);
        !bad.ok())
      return bad;
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!(buffers[i].written || buffers[j].written)) continue;
      if (!shares_bytes(buffers[i].span(), buffers[j].span())) continue;
      return Status::invalid(kWhere + std::string(buffers[i].name) + ": overlaps " + buffers[j].name +
                             "; they must not share memory");
    }
  }
  return {};
}

}  // namespace octavo::fp8
