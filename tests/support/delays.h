// Makes the queues of offload late at random.
// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace test {

// The queues of engines that are made while it lives sleep for up to this number of microseconds.
class Delays {
 public:
  explicit Delays(int microseconds, int seed = 1)
      : Delays(std::to_string(seed) + ":" + std::to_string(microseconds)) {}
  explicit Delays(const std::string& text) { EXPECT_EQ(setenv("OCTAVO_OFFLOAD_DELAYS", text.c_str(), 1), 0); }
  ~Delays() { EXPECT_EQ(unsetenv("OCTAVO_OFFLOAD_DELAYS"), 0); }
  Delays(const Delays&) = delete;
  Delays& operator=(const Delays&) = delete;
};

}  // namespace test
