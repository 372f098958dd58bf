// The core reports failure by a Status, or by a Result that holds a value or a Status. It never prints, exits
// or aborts. Result::value() throws an Error; any call may throw std::bad_alloc. C functions throw nothing.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/export.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace octavo {

enum class StatusCode : std::uint32_t {
  ok = 0,
  invalid_argument = 1,  // the caller's value is wrong; the message names it, its limit and the fix
  unsupported = 2,       // a valid request that this build or machine cannot serve
  failed = 3,            // the environment failed (memory, device)
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  // The message is the parts in order, texts and numbers: invalid("[x] n: got ", n, ", expected ", 3).
  template <class... Part>
  static Status invalid(const Part&... parts) {
    return {StatusCode::invalid_argument, join(parts...)};
  }
  template <class... Part>
  static Status unsupported(const Part&... parts) {
    return {StatusCode::unsupported, join(parts...)};
  }
  template <class... Part>
  static Status failed(const Part&... parts) {
    return {StatusCode::failed, join(parts...)};
  }

  [[nodiscard]] bool ok() const { return code_ == StatusCode::ok; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  template <class... Part>
  static std::string join(const Part&... parts) {
    std::string out;
    const auto add = [&](const auto& part) {
      if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>) {
        out += std::to_string(part);
      } else {
        out += std::string_view(part);
      }
    };
    (add(parts), ...);
    return out;
  }

  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

// Result::value() throws it. No function of the core throws it to its caller.
class Error : public std::runtime_error {
 public:
  explicit Error(const Status& status) : std::runtime_error(status.message()), code_(status.code()) {}
  [[nodiscard]] StatusCode code() const { return code_; }

 private:
  StatusCode code_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : held_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return std::holds_alternative<T>(held_); }
  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<Status>(held_); }

  // REQUIRES: ok().
  T& operator*() { return std::get<T>(held_); }
  const T& operator*() const { return std::get<T>(held_); }
  T* operator->() { return &std::get<T>(held_); }
  const T* operator->() const { return &std::get<T>(held_); }

  // The value, or an octavo::Error with the status's message.
  T& value() & { return ok() ? std::get<T>(held_) : throw Error(std::get<Status>(held_)); }
  T value() && { return ok() ? std::move(std::get<T>(held_)) : throw Error(std::get<Status>(held_)); }

 private:
  std::variant<T, Status> held_;
};

}  // namespace octavo
