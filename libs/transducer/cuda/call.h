// Checks, memory and kernel arguments that both entries of the transducer loss share.
// SPDX-License-Identifier: MIT
#pragma once

#include "transducer/cuda/loss.h"
#include "transducer/gpu_sizes.h"

#include <cstddef>
#include <initializer_list>
#include <string>

namespace octavo::cuda {

// Consecutive parts of a block of memory, each at a multiple of 256 bytes. Without memory it counts the bytes
// that a block may need if it begins at a multiple of sixteen.
class Places {
 public:
  explicit Places(std::byte* base = nullptr)
      : base_(reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(base) + 255) / 256 * 256)) {}
  template <class T>
  void put(T*& to, std::int64_t bytes) {
    to = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += transducer::placed_bytes(bytes);
  }
  [[nodiscard]] std::int64_t bytes() const { return used_ + transducer::kBlockSlack; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

// Fills in all fields but memory. REQUIRES: arguments that the public checks accept, of sizes that
// transducer::check_gpu_limits accepts.
TransducerLattice lattice_of(const TransducerArgs& args, std::uint64_t key);
// Places head, log P, records, alpha and beta.
void place_cells(TransducerLattice& lattice, std::int64_t cells, Places& places);

struct NamedPointer {
  const char* name;
  const void* data;
};
// Checks that the device can be used and owns this memory; null pointers are skipped.
Status check_memory(const TransducerArgs& args, std::initializer_list<NamedPointer> pointers);

Status queued(const char* what, cudaError_t error);

}  // namespace octavo::cuda
