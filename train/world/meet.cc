// SPDX-License-Identifier: MIT
#include "train/world/meet.h"

#include "train/world/group.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace octavo::train {
namespace {

// Groups wait a little longer than the monitor, which can say who is missing.
constexpr std::chrono::milliseconds kLonger{60'000};
constexpr const char* kLoopback = "127.0.0.1";

struct Guest {
  std::string device, address;
};

bool reaches_nobody(const std::string& address) { return address.empty() || is_loopback(address); }

std::vector<std::string> guest_keys(int ranks) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < ranks; ++rank) keys.push_back("here/" + std::to_string(rank));
  return keys;
}

std::string text_in(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

// "rank 1", "ranks 1, 2".
std::string missing_text(c10d::Store& store, int ranks) {
  std::string names;
  int count = 0;
  for (const std::string& key : guest_keys(ranks)) {
    if (store.check({key})) continue;
    if (++count <= 8) names += (count > 1 ? ", " : "") + key.substr(key.find('/') + 1);
  }
  return (count == 1 ? "rank " : "ranks ") + names + (count > 8 ? ", ..." : "");
}

// Rank 0 reads who is there and writes it down; the others read that. An error begins with '!'.
Result<std::vector<Guest>> call_the_roll(c10d::Store& store, const Place& place,
                                         std::chrono::milliseconds timeout) {
  if (place.leads()) {
    std::string roll;
    try {
      store.wait(guest_keys(place.ranks), timeout);
      for (const std::string& key : guest_keys(place.ranks)) roll += text_in(store, key) + "\n";
    } catch (const std::exception&) {
      roll = "!" + missing_text(store, place.ranks) + " of " + std::to_string(place.ranks) +
             " did not come within " + std::to_string(timeout.count() / 1000) + " s";
    }
    store.set("roll", roll);
  }
  store.wait({"roll"}, timeout + kLonger);
  const std::string roll = text_in(store, "roll");
  if (roll.starts_with("!")) return Status::failed(roll.substr(1));
  std::vector<Guest> guests;
  std::istringstream lines(roll);
  for (Guest each; lines >> each.device >> each.address;) guests.push_back(each);
  return guests;
}

Status same_devices(const std::vector<Guest>& guests) {
  const auto other = std::find_if(guests.begin(), guests.end(),
                                  [&](const Guest& each) { return each.device != guests[0].device; });
  if (other == guests.end()) return {};
  return Status::invalid("rank 0 computes on " + guests[0].device + ", rank " +
                         std::to_string(other - guests.begin()) + " on " + other->device +
                         "; all ranks need the same kind of device: see training.device");
}

// The address of this machine that the others reach.
Result<std::string> reachable_address(const std::string& own, const std::vector<Guest>& guests) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (!reaches_nobody(own) || (interface != nullptr && *interface != '\0')) return own;
  // A machine may know its own name as a loopback address: the way to another one tells more.
  for (const Guest& each : guests) {
    if (reaches_nobody(each.address)) continue;
    const std::string found = address_towards(each.address, 1);
    if (!reaches_nobody(found)) return found;
  }
  return Status::failed(
      "no address of this machine was found that the other machines' ranks reach; name the network interface "
      "with GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME");
}

}  // namespace

Result<Meeting> meet(const Place& place, const torch::Device& device, const WorldOptions& options) {
  static std::atomic<int> met{0};  // a process may join a world after another
  const std::string prefix = "octavo/" + std::to_string(place.restart) + "/" + std::to_string(met++) + "/";
  Result<StorePointer> root = open_store(place, options.start);
  if (!root.ok()) return root.status();
  Result<StorePointer> watching = connect_store(place, options.start);
  if (!watching.ok()) return watching.status();
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, *root);
  Meeting meeting;
  try {
    std::string own = place.one_machine() ? kLoopback : address_towards(place.address, place.port);
    if (own.empty()) own = kLoopback;
    const MonitorPlan plan{prefix, options.timeout, options.beat, options.silence, options.patience};
    meeting.monitor = std::make_shared<Monitor>(place, plan, *watching, *root);
    const std::string mine = c10::DeviceTypeName(device.type(), true) + " " + own;
    store->set("here/" + std::to_string(place.rank), mine);
    Result<std::vector<Guest>> guests = call_the_roll(*store, place, options.start);
    if (!guests.ok()) return guests.status();
    if (Status bad = same_devices(*guests); !bad.ok()) return bad;
    meeting.monitor->watch();
    Result<std::string> address = place.one_machine() ? own : reachable_address(own, *guests);
    if (!address.ok()) {
      meeting.monitor->fail(address.status().message());
      return address.status();
    }
    const auto group_store = [&](const char* name) {
      return c10::make_intrusive<c10d::PrefixStore>(name, store);
    };
    const auto timeout = options.timeout + kLonger;
    meeting.hosts = gloo_group({group_store("hosts"), place.rank, place.ranks, timeout, *address, 1});
    const GroupPlan tensors{group_store("tensors"), place.rank, place.ranks, timeout, *address, 2};
    if (device.is_cpu()) {
      meeting.tensors = gloo_group(tensors);
    } else {
      c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
      meeting.tensors = nccl_group(tensors);
      meeting.tensors->enableCollectivesTiming();
    }
    return meeting;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const std::string text = "the ranks did not find each other: " + what.substr(0, what.find('\n'));
    if (meeting.monitor != nullptr) meeting.monitor->fail(text);  // else the others would wait
    return Status::failed(text);
  }
}

}  // namespace octavo::train
