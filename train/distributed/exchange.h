// Exchanges bytes between the hosts of all ranks: every rank receives every rank's bytes. A few bytes take
// one gather and one broadcast, more bytes take a second round.
//
// Every exchange carries the name of the call and a hash of all tensor operations so far. If ranks have made
// different calls, that is an error that names the calls of two ranks, instead of wrong numbers or a hang.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {

// The list of tensor operations, in their order.
class CallList {
 public:
  void add(const std::string& call);
  // Forgets the calls so far, after they were found equal on all ranks.
  void checked() { since_.clear(); }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  // Returns the calls since the last checked(), one per line.
  [[nodiscard]] std::string text() const;

 private:
  std::uint64_t hash_ = 14695981039346656037ULL;
  std::vector<std::string> since_;
};

class Exchange {
 public:
  using Wait = std::function<void(const c10::intrusive_ptr<c10d::Work>&)>;

  Exchange(c10::intrusive_ptr<c10d::Backend> group, Wait wait)
      : group_(std::move(group)), wait_(std::move(wait)) {}
  // Returns all ranks' bytes, by rank. Throws ProcessGroupError if ranks have made different calls.
  std::vector<std::string> all(std::string_view call, std::string_view mine, CallList& calls);

 private:
  // Returns every rank's `bytes`, concatenated. All ranks pass the same number of bytes.
  std::string round(std::string_view bytes);
  [[noreturn]] void differ(std::string_view call, const CallList& calls, int other);

  c10::intrusive_ptr<c10d::Backend> group_;
  Wait wait_;
};

}  // namespace octavo_train
