// All buffers that steps write, sorted by address, to find tensors that share memory. Only parameters may
// share memory with one another. The sorted list is kept, so that adding tensors costs a merge and not a
// sort.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo::engine {

struct Range {
  std::uintptr_t begin, end;
  std::uint32_t handle;
  bool param;
  const char* field;
};

// Returns for example "tensor 3.param".
std::string name_of(const Range& range);

class Ranges {
 public:
  Ranges() = default;
  // The buffers may be in any order.
  explicit Ranges(std::vector<Range> ranges);

  // Returns a copy without the buffers of the tensors in `gone` (sorted) and with `added`.
  [[nodiscard]] Ranges changed(const Ranges& added, std::span<const std::uint32_t> gone) const;

  // Two buffers that must not share memory but do, the one with the higher address first.
  struct Clash {
    Range one, other;
  };
  [[nodiscard]] std::optional<Clash> clash() const;
  // Returns the tensors whose parameters share memory with others.
  [[nodiscard]] std::vector<std::uint32_t> sharing() const;
  // Returns a buffer that shares memory with these bytes.
  [[nodiscard]] std::optional<Range> find(const void* data, std::size_t bytes) const;

 private:
  void reach_out();

  std::vector<Range> sorted_;
  std::vector<std::uintptr_t> reach_;  // for each range: the largest end of it and the ranges before it
};

}  // namespace octavo::engine
