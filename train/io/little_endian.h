// Reads and writes little-endian numbers, independent of this machine's byte order.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <fmt/core.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace octavo_train {

// REQUIRES: the number lies inside `bytes`.
template <std::unsigned_integral T>
[[nodiscard]] T load_little(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= std::to_integer<std::uint64_t>(bytes[at + i]) << (8 * i);
  return static_cast<T>(value);
}

template <std::unsigned_integral T>
[[nodiscard]] T load_little(std::string_view bytes, std::size_t at) {
  return load_little<T>(std::as_bytes(std::span(bytes)), at);
}

template <std::unsigned_integral T>
void append_little(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
}

[[nodiscard]] inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class... Args>
[[nodiscard]] Status invalid_at(std::uint64_t offset, fmt::format_string<Args...> format, Args&&... args) {
  return invalid_error("byte {}: {}", offset, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace octavo_train
