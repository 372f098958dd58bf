// Every buffer that steps write, sorted by address: which tensors share memory.
//
// Parameters may share memory with one another; nothing else may. A list that has passed `check` is kept, so
// that further tensors cost a merge and not a sort.
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

// "tensor 3.param"
std::string name_of(const Range& range);

class Ranges {
 public:
  Ranges() = default;
  // Takes buffers that may be in any order.
  explicit Ranges(std::vector<Range> ranges);

  // These without the buffers of the tensors in `gone` (sorted), and with `added`.
  [[nodiscard]] Ranges changed(const Ranges& added, std::span<const std::uint32_t> gone) const;

  // Two buffers that share memory and must not, the later of them first.
  struct Clash {
    Range one, other;
  };
  [[nodiscard]] std::optional<Clash> clash() const;
  // Tensors whose parameters share memory with others.
  [[nodiscard]] std::vector<std::uint32_t> sharing() const;
  // A buffer that shares memory with these bytes.
  [[nodiscard]] std::optional<Range> find(const void* data, std::size_t bytes) const;

 private:
  void reach_out();

  std::vector<Range> sorted_;
  std::vector<std::uintptr_t> reach_;  // the largest end up to each
};

}  // namespace octavo::engine
