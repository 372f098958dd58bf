// Implements the rendezvous of ranks: through the store the ranks check that all have joined and compute on
// the same kind of device, and then create their process groups.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/process_group.h"
#include "train/distributed/watchdog.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace octavo_train {

// Options of a c10d process group. Each kind of group has its own source file, because c10d's headers for
// them need more than every LibTorch has.
struct BackendOptions {
  c10::intrusive_ptr<c10d::Store> store;  // used only by the ranks of this group
  int rank = 0, ranks = 1;
  std::chrono::milliseconds timeout{0};
  std::string address;  // this machine's address for gloo; GLOO_SOCKET_IFNAME takes precedence
  int threads = 2;      // gloo: number of concurrent operations
};

c10::intrusive_ptr<c10d::Backend> gloo_group(const BackendOptions& options);
// REQUIRES: the rank's GPU is the current device. Throws if this build has no NCCL.
c10::intrusive_ptr<c10d::Backend> nccl_group(const BackendOptions& options);

struct Meeting {
  std::shared_ptr<Watchdog> monitor;
  c10::intrusive_ptr<c10d::Backend> tensors, hosts;
};

// Waits for all ranks of `rank_info`. An error names the ranks that have not joined or that differ. `common`
// is set if every rank has the same error.
Result<Meeting> rendezvous(const RankInfo& rank_info, const torch::Device& device,
                           const ProcessGroupOptions& options, std::optional<RankFailure>& common);

}  // namespace octavo_train
