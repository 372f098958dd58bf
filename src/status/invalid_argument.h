// Builds the message for an invalid argument: its name, its value, and what was expected.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cstdint>
#include <string>

namespace octavo {

// An object is called like a function: invalid(field, got, expected).
struct InvalidArgument {
  const char* where;  // the beginning of the message, such as "[fp8] "

  Status operator()(const std::string& field, const std::string& got, const std::string& expected) const {
    return Status::invalid(where + field + ": got " + got + ", expected " + expected);
  }
  Status operator()(const std::string& field, std::int64_t got, const std::string& expected) const {
    return (*this)(field, std::to_string(got), expected);
  }
};

}  // namespace octavo
