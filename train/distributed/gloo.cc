// Creates process groups over gloo, for CPUs.
// SPDX-License-Identifier: MIT
#define USE_C10D_GLOO
#include "train/distributed/rendezvous.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

namespace octavo_train {

c10::intrusive_ptr<c10d::Backend> gloo_group(const BackendOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo = Gloo::Options::create(options.timeout);
  gloo->threads = options.threads;
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  gloo->devices.push_back(interface != nullptr && *interface != '\0'
                              ? Gloo::createDeviceForInterface(interface)
                              : Gloo::createDeviceForHostname(options.address));
  return c10::make_intrusive<Gloo>(options.store, options.rank, options.ranks, gloo);
}

}  // namespace octavo_train
