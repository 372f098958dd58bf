// SPDX-License-Identifier: MIT
#include "train/distributed/agreement.h"

#include "train/io/checksums.h"

#include <fmt/format.h>

#include <cstddef>
#include <new>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

constexpr std::size_t kShownLine = 200;  // characters of a line that differs

Status caught(const std::function<Status()>& stage) {
  try {
    return stage();
  } catch (const ProcessGroupError&) {
    throw;  // the process group has failed: no rank can be asked
  } catch (const std::exception& error) {
    return status_of(error);
  }
}

// Returns the first line of each text that differs from the other text's.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream left(a), right(b);
  std::string x, y;
  for (;;) {
    const bool has_x = static_cast<bool>(std::getline(left, x)),
               has_y = static_cast<bool>(std::getline(right, y));
    if (!has_x) x = "nothing";
    if (!has_y) y = "nothing";
    if (x != y || (!has_x && !has_y)) return {x.substr(0, kShownLine), y.substr(0, kShownLine)};
  }
}

std::string trimmed(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(' ');
  return begin == std::string::npos ? std::string() : line.substr(begin);
}

}  // namespace

std::string error_text(const c10::Error& error) {
  const std::string what = error.what_without_backtrace();
  return what.substr(0, what.find('\n'));
}

Status status_of(const std::exception& error) {
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error))
    return Status::failed("LibTorch: " + error_text(*torch));
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return Status::failed("out of memory on the host");
  const auto* own = dynamic_cast<const Error*>(&error);
  return Status(own != nullptr ? own->code() : StatusCode::failed, error.what());
}

Status run_on_all_ranks(ProcessGroup& process_group, const std::function<Status()>& stage) {
  return process_group.grouped() ? process_group.first_error(caught(stage)) : stage();
}

Status check_equal_across_ranks(ProcessGroup& process_group, std::span<const NamedText> texts) {
  if (!process_group.grouped()) return {};
  std::string mine;
  for (const NamedText& each : texts) mine += xxh3_hex(each.text);
  const std::vector<std::string> all = process_group.gather(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::size_t width = mine.size() / texts.size();
    std::size_t at = 0;
    while (at + 1 < texts.size() && all[rank].compare(at * width, width, all[0], at * width, width) == 0)
      ++at;
    const std::string& name = texts[at].name;
    const std::vector<std::string> everyone = process_group.gather(texts[at].text);
    const auto [first, other] = first_difference(everyone[0], everyone[rank]);
    const int number = static_cast<int>(rank);
    const std::string text = fmt::format(
        "{0}'s {1} differs from rank 0's: {0} has {2}, rank 0 has {3}. Start all ranks with the same {1}.",
        rank_text(number), name, trimmed(other), trimmed(first));
    process_group.note_common_failure({number, RankFailure::FoundBy::all, text});
    return Status::invalid(text);
  }
  return {};
}

}  // namespace octavo_train
