// Groups of ranks as c10d makes them. Each kind has a source of its own, because c10d's headers for them need
// more than a LibTorch has.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace octavo::train {

struct GroupPlan {
  c10::intrusive_ptr<c10d::Store> store;  // in which the ranks of this group alone meet
  int rank = 0, ranks = 1;
  std::chrono::milliseconds timeout{0};
  std::string address;  // of this machine, at which gloo listens; GLOO_SOCKET_IFNAME has precedence
  int threads = 2;      // gloo: how many operations run at a time
};

c10::intrusive_ptr<c10d::Backend> gloo_group(const GroupPlan& plan);
// REQUIRES: the rank's GPU is the current device. Throws where this build has no NCCL.
c10::intrusive_ptr<c10d::Backend> nccl_group(const GroupPlan& plan);

}  // namespace octavo::train
