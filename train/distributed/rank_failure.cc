// SPDX-License-Identifier: MIT
#include "train/distributed/rank_failure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

namespace octavo_train {
namespace {

int g_rank = 0;  // NOLINT: a handler has no arguments

void print(const char* what) {
  char line[1024];
  const int length = std::snprintf(line, sizeof line, "octavo: rank %d: %s\n", g_rank, what);
  const auto size = static_cast<std::size_t>(length);
  const ssize_t written = write(STDERR_FILENO, line, size < sizeof line ? size : sizeof line - 1);
  static_cast<void>(written);
}

[[noreturn]] void end() {
  std::signal(SIGABRT, SIG_DFL);
  std::set_terminate(std::abort);
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    print(
        "a thread could not be started or ended; memory or threads may be exhausted (ulimit -v, ulimit -u)");
  } catch (const std::bad_alloc&) {
    print("out of memory on the host");
  } catch (const std::exception& error) {
    print(error.what());
  } catch (...) {
    print("ended by an unknown exception");
  }
  std::abort();
}

}  // namespace

void print_before_terminate(int rank) {
  g_rank = rank;
  std::set_terminate(end);
}

std::string rank_text(int rank) { return fmt::format("rank {}", rank); }

std::string seconds_text(std::chrono::steady_clock::duration time) {
  return fmt::format("{} s", std::chrono::duration_cast<std::chrono::seconds>(time).count());
}

// The stored form is "rank found_by text".
std::string to_store(const RankFailure& failure) {
  return fmt::format("{} {} {}", failure.rank, static_cast<int>(failure.found_by), failure.text);
}

RankFailure from_store(std::string_view stored) {
  int rank = 0, found_by = 0;
  const char* const end = stored.data() + stored.size();
  const auto first = std::from_chars(stored.data(), end, rank);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return {.text = std::string(stored)};
  const auto second = std::from_chars(first.ptr + 1, end, found_by);
  const bool valid = second.ec == std::errc() && second.ptr != end && *second.ptr == ' ' &&
                     rank >= RankFailure::kNoRank && found_by >= 0 &&
                     found_by <= static_cast<int>(RankFailure::FoundBy::all);
  if (!valid) return {.text = std::string(stored)};
  return {rank, static_cast<RankFailure::FoundBy>(found_by), std::string(second.ptr + 1, end)};
}

}  // namespace octavo_train
