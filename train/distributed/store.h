// The store in which the ranks of a run meet: c10d's TCPStore, which the launcher serves, or rank 0.
// It listens on the loopback interface where all ranks are on one machine, else at the master's address.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/rank_info.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace octavo::train {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

struct ServedStore {
  StorePointer store;
  int port = 0;
};

// Serves one at this address of this machine. Port 0: a free one. A port in use is an error that names it. A
// client that closes its connection early does not end the process by SIGPIPE.
Result<ServedStore> serve_store(const std::string& address, int port);

// The one of this place: rank 0 serves it where nobody else does, once in a process.
Result<StorePointer> open_store(const Place& place, std::chrono::milliseconds timeout);
// Another connection to it, for another thread: a connection serves one request at a time.
Result<StorePointer> connect_store(const Place& place, std::chrono::milliseconds timeout);

// An error where this process may not open so many more files and sockets. c10d would try to connect, without
// a word, until its timeout.
Status enough_descriptors(int count);

// An address, as numbers, that only this machine reaches.
bool is_loopback(const std::string& address);
// The address of this machine from which `target` is reached, as numbers; empty: it is not reached.
std::string address_towards(const std::string& target, int port);

}  // namespace octavo::train
