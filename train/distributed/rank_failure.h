// The failure that ends a run of several ranks, as a value: the rank that failed, the process that found it,
// and the text. Also prints a message if C++ terminates a rank: because of an exception in a library's
// thread, or if memory is too scarce to report an error.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace octavo_train {

struct RankFailure {
  // `itself`: the rank reported its own error. `others`: another rank found that it is gone or hangs.
  // `launcher`: the launcher saw its process end. `all`: every rank has the same error, from one call.
  enum class FoundBy { itself, others, launcher, all };

  static constexpr int kNoRank = -1;
  int rank = kNoRank;  // kNoRank: the failed rank is unknown, or it was not a rank
  FoundBy found_by = FoundBy::others;
  std::string text;  // text for the user, including the rank: "rank 1: out of memory"
};

// Convert a failure to and from its form in the store. Text of another form becomes a failure without a rank.
std::string to_store(const RankFailure& failure);
RankFailure from_store(std::string_view stored);

// Returns "rank 1".
std::string rank_text(int rank);
// Returns the whole seconds of a time: "20 s".
std::string seconds_text(std::chrono::steady_clock::duration time);

// Ends a run of several ranks. what() is the failure's text, followed by the newest checkpoint if it is
// known.
class ProcessGroupError : public std::runtime_error {
 public:
  explicit ProcessGroupError(RankFailure failure, const std::string& note = {})
      : std::runtime_error(failure.text + note), failure_(std::move(failure)) {}
  [[nodiscard]] const RankFailure& failure() const { return failure_; }

 private:
  RankFailure failure_;
};

// Makes std::terminate print "octavo: rank N: ..." with the exception before it aborts. Printing allocates no
// memory.
void print_before_terminate(int rank);

}  // namespace octavo_train
