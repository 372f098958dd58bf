// SPDX-License-Identifier: MIT
#include "train/distributed/rendezvous.h"

#include "train/base/status.h"
#include "train/distributed/store.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace octavo_train {
namespace {

// The other ranks wait this much longer than rank 0, because they may have started earlier.
constexpr std::chrono::milliseconds kLonger{60'000};
// Extra time for TCPStore to report its own timeout, whose message has more details.
constexpr std::chrono::milliseconds kReport{2'000};
// Groups have practically no timeout, because it could end a long save. The monitor ends operations instead,
// and names the missing rank.
constexpr std::chrono::milliseconds kGroupTimeout = std::chrono::hours(24 * 365);
constexpr const char* kLoopback = "127.0.0.1";

struct Member {
  std::string device, address;
};

bool is_unreachable(const std::string& address) { return address.empty() || is_loopback(address); }

std::vector<std::string> member_keys(int ranks) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < ranks; ++rank) keys.push_back(fmt::format("here/{}", rank));
  return keys;
}

std::string text_in(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

// Returns the ranks that have not joined, as "rank 1" or "ranks 1, 2".
std::string missing_text(c10d::Store& store, int ranks) {
  std::string names;
  int count = 0;
  for (const std::string& key : member_keys(ranks)) {
    if (store.check({key})) continue;
    if (++count <= 8) names += (count > 1 ? ", " : "") + key.substr(key.find('/') + 1);
  }
  return (count == 1 ? "rank " : "ranks ") + names + (count > 8 ? ", ..." : "");
}

constexpr const char* kRoll = "roll";

// Collects the list of ranks. Rank 0 waits until all ranks have registered and writes the list; the others
// read it. An error in the list begins with '!' and is the same for all ranks.
Result<std::vector<Member>> exchange_members(c10d::Store& store, const RankInfo& rank_info,
                                             std::chrono::milliseconds timeout,
                                             std::optional<RankFailure>& common) {
  if (rank_info.leads()) {
    std::string roll;
    try {
      store.wait(member_keys(rank_info.ranks), timeout);
      for (const std::string& key : member_keys(rank_info.ranks)) roll += text_in(store, key) + "\n";
    } catch (const std::exception&) {
      roll = fmt::format("!{} of {} did not join within {}", missing_text(store, rank_info.ranks),
                         rank_info.ranks, seconds_text(timeout));
    }
    store.set(kRoll, roll);
  }
  try {
    store.wait({kRoll}, timeout + kLonger);
  } catch (const std::exception&) {
    return failed_error("rank 0 did not join within {}", seconds_text(timeout + kLonger));
  }
  const std::string roll = text_in(store, kRoll);
  if (roll.starts_with("!")) {
    common = RankFailure{.found_by = RankFailure::FoundBy::all, .text = roll.substr(1)};
    return Status::failed(common->text);
  }
  std::vector<Member> members;
  std::istringstream lines(roll);
  for (Member each; lines >> each.device >> each.address;) members.push_back(each);
  return members;
}

Status same_devices(const std::vector<Member>& members, std::optional<RankFailure>& common) {
  const auto other = std::find_if(members.begin(), members.end(),
                                  [&](const Member& each) { return each.device != members[0].device; });
  if (other == members.end()) return {};
  const int rank = static_cast<int>(other - members.begin());
  common = RankFailure{
      rank, RankFailure::FoundBy::all,
      fmt::format(
          "rank 0 computes on {}, rank {} on {}; all ranks need the same kind of device: see training.device",
          members[0].device, rank, other->device)};
  return Status::invalid(common->text);
}

// Returns an address of this machine that the other machines can reach.
Result<std::string> reachable_address(const std::string& own, const std::vector<Member>& members) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (!is_unreachable(own) || (interface != nullptr && *interface != '\0')) return own;
  // A machine may resolve its own name to a loopback address. The route to another machine shows its real
  // address.
  for (const Member& each : members) {
    if (is_unreachable(each.address)) continue;
    const std::string found = address_towards(each.address, 1);
    if (!is_unreachable(found)) return found;
  }
  return Status::failed(
      "no address of this machine was found that the other machines' ranks reach; name the network interface "
      "with GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME");
}

// A rank's two connections to the store.
struct Arrival {
  StorePointer root, watching;
};

// The result of the roll call.
struct Roll {
  std::shared_ptr<Watchdog> monitor;
  std::vector<Member> members;
  std::optional<RankFailure> common;
};

Result<Arrival> arrive(const RankInfo& rank_info, std::chrono::milliseconds timeout) {
  ASSIGN_OR_RETURN(StorePointer root, open_store(rank_info, timeout));
  ASSIGN_OR_RETURN(StorePointer watching, connect_store(rank_info, timeout));
  return Arrival{root, watching};
}

Result<Roll> find_ranks(const Arrival& arrival, const RankInfo& rank_info, const std::string& prefix,
                        const std::string& member, const ProcessGroupOptions& options) {
  Roll roll;
  const WatchdogOptions watchdog{prefix,          options.timeout,  options.beat,
                                 options.silence, options.patience, std::max(options.local, options.timeout)};
  roll.monitor = std::make_shared<Watchdog>(rank_info, watchdog, arrival.watching, arrival.root);
  c10d::PrefixStore store(prefix, arrival.root);
  store.set(fmt::format("here/{}", rank_info.rank), member);
  Result<std::vector<Member>> members = exchange_members(store, rank_info, options.start, roll.common);
  if (!members.ok() && !roll.common) return members.status();
  if (members.ok()) roll.members = std::move(*members);
  return roll;
}

// Writes an error in place of the list, because the other ranks would wait for rank 0 until the timeout.
void cancel_roll(const Arrival& arrival, const std::string& prefix, std::chrono::milliseconds limit) {
  try {
    TimedStore store(c10::make_intrusive<c10d::PrefixStore>(prefix, arrival.watching), limit);
    store.set(kRoll, "!rank 0 was stopped by a signal before all ranks were there");
  } catch (const std::exception&) {
    // The store is gone: the others notice it.
  }
}

// Runs `get` in a thread, so that signals are handled even if the store never answers or a rank never joins.
// `late` is the error after `limit`.
template <class Value>
Result<Value> in_time(const std::function<Result<Value>()>& get, std::chrono::milliseconds limit,
                      const ProcessGroupOptions& options, const std::string& late) {
  TimedThread thread;
  auto got = std::make_shared<std::optional<Result<Value>>>();
  const auto end = thread.run([got, get] { got->emplace(get()); }, limit, options.stop);
  if (end == TimedThread::End::done) return std::move(**got);
  return Status::failed(end == TimedThread::End::late ? late
                                                      : "stopped by a signal before all ranks were there");
}

std::string first_line(const std::exception& error) {
  const std::string what = error.what();
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return fmt::format(
        "a thread could not be started ({}): memory or the number of threads is exhausted; see ulimit -v and "
        "ulimit -u",
        what);
  }
  return what.substr(0, what.find('\n'));
}

}  // namespace

Result<Meeting> rendezvous(const RankInfo& rank_info, const torch::Device& device,
                           const ProcessGroupOptions& options, std::optional<RankFailure>& common) {
  static std::atomic<int> met{0};  // a process may join several worlds, one after the other
  const std::string prefix = fmt::format("octavo/{}/{}/", rank_info.restart, met++);
  RETURN_IF_ERROR(enough_descriptors(16 + 2 * rank_info.ranks));
  Meeting meeting;
  try {
    const auto start = options.start;
    ASSIGN_OR_RETURN(
        const auto arrival,
        in_time<Arrival>([=] { return arrive(rank_info, start); }, start + kReport, options,
                         fmt::format("the store of the ranks at {}, port {} has not answered for {} s: a "
                                     "program listens there, but it does not serve this run "
                                     "(MASTER_ADDR and MASTER_PORT name the store)",
                                     rank_info.address, rank_info.port, (start + kReport).count() / 1000)));
    std::string own =
        rank_info.one_machine() ? kLoopback : address_towards(rank_info.address, rank_info.port);
    if (own.empty()) own = kLoopback;
    const std::string mine = c10::DeviceTypeName(device.type(), true) + " " + own;
    const auto roll_limit = start + kLonger + kReport;
    auto roll =
        in_time<Roll>([=] { return find_ranks(arrival, rank_info, prefix, mine, options); }, roll_limit,
                      options, "the store of the ranks has not answered for " + seconds_text(roll_limit));
    if (!roll.ok()) {
      if (rank_info.leads() && options.stop && options.stop()) cancel_roll(arrival, prefix, options.silence);
      return roll.status();
    }
    common = roll->common;
    if (common) return Status::failed(common->text);
    RETURN_IF_ERROR(same_devices(roll->members, common));
    meeting.monitor = roll->monitor;
    meeting.monitor->watch();
    const auto fail = [&](const std::string& what) {  // without this report the others would wait
      meeting.monitor->fail(
          {rank_info.rank, RankFailure::FoundBy::itself, rank_text(rank_info.rank) + ": " + what});
    };
    Result<std::string> address = rank_info.one_machine() ? own : reachable_address(own, roll->members);
    if (!address.ok()) {
      fail(address.status().message());
      return address.status();
    }
    auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, arrival.root);
    const auto group_store = [store](const char* name) {
      return c10::make_intrusive<c10d::PrefixStore>(name, store);
    };
    const std::string own_address = *address;
    const auto make = [=]() -> Result<Meeting> {
      Meeting made;
      made.hosts =
          gloo_group({group_store("hosts"), rank_info.rank, rank_info.ranks, kGroupTimeout, own_address, 1});
      const BackendOptions tensors{group_store("tensors"), rank_info.rank, rank_info.ranks,
                                   kGroupTimeout,          own_address,    2};
      if (device.is_cpu()) {
        made.tensors = gloo_group(tensors);
      } else {
        c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);  // applies to this thread
        made.tensors = nccl_group(tensors);
        made.tensors->enableCollectivesTiming();
      }
      return made;
    };
    const auto groups =
        in_time<Meeting>(make, start + kReport, options,
                         "the ranks did not connect to each other within " + seconds_text(start + kReport));
    if (!groups.ok()) {
      fail(groups.status().message());
      return groups.status();
    }
    if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
    meeting.hosts = groups->hosts;
    meeting.tensors = groups->tensors;
    return meeting;
  } catch (const std::exception& error) {
    const std::string text = "the ranks did not find each other: " + first_line(error);
    if (meeting.monitor != nullptr)  // without this report the others would wait
      meeting.monitor->fail(
          {rank_info.rank, RankFailure::FoundBy::itself, rank_text(rank_info.rank) + ": " + text});
    return Status::failed(text);
  }
}

}  // namespace octavo_train
