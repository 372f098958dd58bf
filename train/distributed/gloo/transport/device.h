// Declares gloo's transport types that c10d's header mentions; see ../context.h.
// SPDX-License-Identifier: MIT
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};

}  // namespace gloo::transport
