// What hosts tell each other: each rank's bytes, to all ranks. A few bytes take one gather and one broadcast,
// more take another round.
//
// Every exchange carries the name of the call and a sum of all operations on tensors so far. Ranks that have
// not made the same calls are an error that says which rank did what, instead of wrong numbers or a hang.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// Operations on tensors, in their order.
class CallList {
 public:
  void add(const std::string& call);
  // Those before are equal on all ranks.
  void checked() { since_.clear(); }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  // Since they were checked last, one a line.
  [[nodiscard]] std::string text() const;

 private:
  std::uint64_t hash_ = 14695981039346656037ULL;
  std::vector<std::string> since_;
};

class Exchange {
 public:
  using Wait = std::function<void(const c10::intrusive_ptr<c10d::Work>&)>;

  Exchange(c10::intrusive_ptr<c10d::Backend> group, Wait wait);
  // Everybody's bytes, by rank. Throws WorldError where ranks have made other calls.
  std::vector<std::string> all(std::string_view call, std::string_view mine, CallList& calls);

 private:
  // Every rank's `bytes`, of one size, one after the other.
  std::string round(std::string_view bytes);
  [[noreturn]] void differ(std::string_view call, const CallList& calls, int other);

  c10::intrusive_ptr<c10d::Backend> group_;
  Wait wait_;
};

}  // namespace octavo::train
