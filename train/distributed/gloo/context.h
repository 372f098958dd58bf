// LibTorch has gloo inside, but not gloo's headers, and c10d's header of a group over gloo includes them.
// This folder declares what that header mentions. Only gloo.cc sees it, and makes none of these things
// itself: all of them live in LibTorch, behind pointers.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
