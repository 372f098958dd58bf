// What c10d's header mentions of gloo's transports: see context.h.
// SPDX-License-Identifier: MIT
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};

}  // namespace gloo::transport
