// LibTorch contains gloo but not gloo's headers, and c10d's header of ProcessGroupGloo includes them. This
// folder declares what that header mentions. Only gloo.cc includes it. It creates none of these objects
// itself: all of them are created inside LibTorch and used through pointers.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
