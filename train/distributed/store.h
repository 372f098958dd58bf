// The store through which the ranks of a run meet: c10d's TCPStore, served by the launcher or by rank 0. It
// listens on the loopback interface if all ranks are on one machine, else at the master's address.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/rank_info.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace octavo_train {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

struct ServedStore {
  StorePointer store;
  int port = 0;
};

// Serves a store at this address of this machine. Port 0 chooses a free port. If the port is in use, the
// error names it. A client that closes its connection early does not end the process by SIGPIPE.
Result<ServedStore> serve_store(const std::string& address, int port);

// Returns the store of this place. Rank 0 serves it, once per process, unless the launcher does.
Result<StorePointer> open_store(const RankInfo& place, std::chrono::milliseconds timeout);
// Opens another connection to the store, for another thread: a connection serves one request at a time.
Result<StorePointer> connect_store(const RankInfo& place, std::chrono::milliseconds timeout);

// Returns an error if this process may not open `count` more files and sockets. Without this check c10d would
// silently try to connect until its timeout.
Status enough_descriptors(int count);

// Returns true for a numeric address that only this machine reaches.
bool is_loopback(const std::string& address);
// Returns this machine's numeric address from which `target` is reached; empty if it cannot be reached.
std::string address_towards(const std::string& target, int port);

}  // namespace octavo_train
