// SPDX-License-Identifier: MIT
#include "train/distributed/exchange.h"

#include "train/distributed/rank_failure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::size_t kInline = 232;

// The fixed-size header that every rank sends first.
struct Head {
  std::uint64_t calls = 0;  // CallList::hash()
  std::uint64_t call = 0;   // hash of the exchange's name
  std::uint64_t length = 0;
  char bytes[kInline] = {};
};
static_assert(sizeof(Head) == 256);

std::uint64_t mixed(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return (hash ^ 0xFFU) * 1099511628211ULL;
}

torch::Tensor byte_tensor(std::size_t size) {
  return torch::zeros({static_cast<std::int64_t>(size)}, torch::kUInt8);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

void CallList::add(const std::string& call) {
  hash_ = mixed(hash_, call);
  since_.push_back(call);
}

std::string CallList::text() const {
  std::string all;
  for (const std::string& call : since_) all += call + "\n";
  return all;
}

std::string Exchange::round(std::string_view bytes) {
  const auto ranks = static_cast<std::size_t>(group_->getSize());
  torch::Tensor mine = byte_tensor(bytes.size());
  std::memcpy(mine.data_ptr(), bytes.data(), bytes.size());
  torch::Tensor gathered = byte_tensor(bytes.size() * ranks);
  std::vector<std::vector<torch::Tensor>> parts;
  if (group_->getRank() == 0) parts.push_back(gathered.chunk(group_->getSize()));
  std::vector<torch::Tensor> given{mine}, whole{gathered};
  wait_(group_->gather(parts, given));
  wait_(group_->broadcast(whole));
  return {static_cast<const char*>(gathered.data_ptr()), bytes.size() * ranks};
}

std::vector<std::string> Exchange::all(std::string_view call, std::string_view mine, CallList& calls) {
  Head head;
  head.calls = calls.hash();
  head.call = mixed(0, call);
  head.length = mine.size();
  std::memcpy(head.bytes, mine.data(), std::min(mine.size(), kInline));
  const std::string first = round({reinterpret_cast<const char*>(&head), sizeof head});
  std::vector<Head> heads(static_cast<std::size_t>(group_->getSize()));
  std::memcpy(heads.data(), first.data(), first.size());
  std::size_t longest = 0;
  for (std::size_t rank = 0; rank < heads.size(); ++rank) {
    if (heads[rank].calls != heads[0].calls || heads[rank].call != heads[0].call)
      differ(call, calls, static_cast<int>(rank));
    longest = std::max(longest, static_cast<std::size_t>(heads[rank].length));
  }
  calls.checked();
  std::string second;
  if (longest > kInline) {
    std::string padded(mine);
    padded.resize(longest);
    second = round(padded);
  }
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < heads.size(); ++rank) {
    const char* begin = longest > kInline ? second.data() + rank * longest : heads[rank].bytes;
    texts.emplace_back(begin, heads[rank].length);
  }
  return texts;
}

// All ranks call this together, because all have received the same headers.
void Exchange::differ(std::string_view call, const CallList& calls, int other) {
  constexpr std::size_t kText = 4096;
  std::string mine = calls.text() + std::string(call) + "\n";
  mine.resize(kText);
  const std::string texts = round(mine);
  const auto text = [&](int rank) {
    // A shorter text is padded with zeros.
    return lines_of(texts.substr(static_cast<std::size_t>(rank) * kText, kText).c_str());
  };
  const std::vector<std::string> first = text(0), second = text(other);
  std::size_t at = 0;
  while (at < first.size() && at < second.size() && first[at] == second[at]) ++at;
  const auto call_of = [&](const std::vector<std::string>& lines) {
    return at < lines.size() ? lines[at] : std::string("nothing");
  };
  throw ProcessGroupError({other, RankFailure::FoundBy::all,
                           fmt::format("ranks are out of step: rank 0 is in {}, rank {} is in {}; all ranks "
                                       "must have the same model, data and settings",
                                       call_of(first), other, call_of(second))});
}

}  // namespace octavo_train
