// Creates process groups over NCCL, for GPUs.
//
// c10d's header for these groups needs CUDA's and NCCL's headers. If CMake finds all of them
// (cmake/OctavoNccl.cmake), it is used. Otherwise this file declares the class again: with the two
// constructors that it calls, whose code is in LibTorch's CUDA library, and with more bytes than the real
// class has. That is correct only for versions whose layout was checked, so other versions are refused.
// SPDX-License-Identifier: MIT
#ifdef OCTAVO_NCCL_HEADER
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "train/distributed/rendezvous.h"

#include <torch/version.h>

#include <cstddef>
#include <cstdlib>

// The versions of LibTorch whose ProcessGroupNCCL was compiled and measured: its only base is Backend, and
// its size is in the table below.
#define OCTAVO_NCCL_CHECKED \
  (TORCH_VERSION_MAJOR == 2 && (TORCH_VERSION_MINOR == 11 || TORCH_VERSION_MINOR == 13))

#if defined(OCTAVO_NCCL) && !defined(OCTAVO_NCCL_HEADER) && OCTAVO_NCCL_CHECKED

namespace c10d {

class ProcessGroupNCCL : public Backend {
 public:
  struct Options : Backend::Options {
    explicit Options(bool is_high_priority_stream);
    ~Options() override;
    char room[1024];
  };
  ProcessGroupNCCL(c10::intrusive_ptr<Store> store, int rank, int size, c10::intrusive_ptr<Options> options);
  ~ProcessGroupNCCL() override;
  char room[16384];
};

}  // namespace c10d

#endif

namespace octavo_train {

#if defined(OCTAVO_NCCL) && (defined(OCTAVO_NCCL_HEADER) || OCTAVO_NCCL_CHECKED)

#ifndef OCTAVO_NCCL_HEADER
namespace {

// The sizes of the real classes in bytes.
struct Layout {
  int minor;  // minor version of LibTorch 2
  std::size_t group, options;
};
constexpr Layout kChecked[] = {{11, 1112, 248}, {13, 1152, 264}};

constexpr bool has_room() {
  for (const Layout& each : kChecked) {
    if (each.minor != TORCH_VERSION_MINOR) continue;
    return sizeof(c10d::ProcessGroupNCCL) >= each.group &&
           sizeof(c10d::ProcessGroupNCCL::Options) >= each.options && alignof(c10d::ProcessGroupNCCL) == 8;
  }
  return false;
}
static_assert(has_room(), "ProcessGroupNCCL is declared too small, or this version is not in the table");

}  // namespace
#endif

c10::intrusive_ptr<c10d::Backend> nccl_group(const BackendOptions& options) {
  using Nccl = c10d::ProcessGroupNCCL;
  // NCCL finds its peers over sockets, even if the data goes over the GPUs' own links.
  if (options.address == "127.0.0.1") setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  // true: a high-priority stream, so that reductions run before kernels that wait.
  auto nccl = c10::make_intrusive<Nccl::Options>(true);
  nccl->timeout = options.timeout;
  return c10::make_intrusive<Nccl>(options.store, options.rank, options.ranks, nccl);
}

#else

c10::intrusive_ptr<c10d::Backend> nccl_group(const BackendOptions& options) {
#ifdef OCTAVO_NCCL
  TORCH_CHECK(false, "this build cannot use the NCCL of LibTorch ", TORCH_VERSION,
              ", because it was built without the headers of NCCL and CUDA, and the layout of that version's "
              "ProcessGroupNCCL was not checked (2.11 and 2.13 were); ranks on GPUs (",
              options.ranks,
              ") need it: install the packages nvidia-nccl and nvidia-cuda-runtime beside torch and build "
              "again, build with one of these versions, or use device: cpu");
#else
  TORCH_CHECK(false, "this build has no NCCL, which ranks on GPUs need: its LibTorch has no CUDA part (",
              options.ranks, " ranks); use device: cpu, or build with a LibTorch for CUDA");
#endif
}

#endif

}  // namespace octavo_train
