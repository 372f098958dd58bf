// Creates c10d process groups. Each kind has its own source file, because c10d's headers for them need more
// than every LibTorch has.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace octavo_train {

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

}  // namespace octavo_train
