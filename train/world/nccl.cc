// Groups over NCCL, for GPUs.
//
// c10d's own header for them needs a CUDA toolkit and NCCL's header, which a LibTorch does not have. What is
// used of the class is two constructors, so it is declared here once more: with the same names, and with more
// room than the real one needs. The constructors live in LibTorch's CUDA part; a LibTorch that has others is
// an error of the linker.
// SPDX-License-Identifier: MIT
#include "train/world/group.h"

#include <cstdlib>

#ifdef OCTAVO_NCCL

namespace c10d {

class ProcessGroupNCCL : public Backend {
 public:
  struct Options : Backend::Options {
    explicit Options(bool is_high_priority_stream);
    ~Options() override;
    char room[1024];  // 248 bytes in all in version 2.11
  };
  ProcessGroupNCCL(c10::intrusive_ptr<Store> store, int rank, int size, c10::intrusive_ptr<Options> options);
  ~ProcessGroupNCCL() override;
  char room[16384];  // 1112 bytes in all in version 2.11
};

}  // namespace c10d

#endif

namespace octavo::train {

c10::intrusive_ptr<c10d::Backend> nccl_group(const GroupPlan& plan) {
#ifdef OCTAVO_NCCL
  using Nccl = c10d::ProcessGroupNCCL;
  // NCCL finds its peers over sockets, also where the data goes over the GPUs' own links.
  if (plan.address == "127.0.0.1") setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  auto options = c10::make_intrusive<Nccl::Options>(true);  // reductions go before kernels that wait
  options->timeout = plan.timeout;
  return c10::make_intrusive<Nccl>(plan.store, plan.rank, plan.ranks, options);
#else
  TORCH_CHECK(false, "this build has no NCCL, which ranks on GPUs need: its LibTorch has no CUDA part (",
              plan.ranks, " ranks); use device: cpu, or build with a LibTorch for CUDA");
#endif
}

}  // namespace octavo::train
