// Creates process groups over gloo, for CPUs.
// SPDX-License-Identifier: MIT
#define USE_C10D_GLOO
#include "train/distributed/group.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

namespace octavo_train {

c10::intrusive_ptr<c10d::Backend> gloo_group(const BackendOptions& plan) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(plan.timeout);
  options->threads = plan.threads;
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(interface != nullptr && *interface != '\0'
                                 ? Gloo::createDeviceForInterface(interface)
                                 : Gloo::createDeviceForHostname(plan.address));
  return c10::make_intrusive<Gloo>(plan.store, plan.rank, plan.ranks, options);
}

}  // namespace octavo_train
