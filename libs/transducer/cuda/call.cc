// SPDX-License-Identifier: MIT
#include "transducer/cuda/call.h"

#include "cuda/runtime/runtime.h"
#include "status/first_error.h"
#include "transducer/invalid_argument.h"
#include "transducer/lattice.h"

#include <algorithm>

namespace octavo::cuda {

TransducerLattice lattice_of(const TransducerArgs& args, std::uint64_t key) {
  const bool rnnt = transducer::is_rnnt(args);
  TransducerLattice l{};
  l.batch = static_cast<std::int32_t>(args.batch);
  l.frames = static_cast<std::int32_t>(args.frames);
  l.positions = static_cast<std::int32_t>(args.positions);
  l.tokens = static_cast<std::int32_t>(args.tokens);
  l.blank = static_cast<std::int32_t>(args.blank);
  l.extra = static_cast<std::int32_t>(args.durations.size());
  l.durations = rnnt ? 0 : l.extra;
  l.sigma = rnnt ? 0.0F : static_cast<float>(args.sigma);
  l.reduction = args.reduction;
  l.key = key;
  l.targets = args.targets;
  l.target_stride = transducer::target_stride(args);
  std::int32_t longest = 1;
  for (std::int32_t i = 0; i < l.durations; ++i) {
    // A duration longer than a clip leads nowhere, whatever its value.
    l.advance[i] =
        static_cast<std::int32_t>(std::min(args.durations[static_cast<std::size_t>(i)], args.frames + 1));
    if (l.advance[i] <= l.frames) longest = std::max(longest, l.advance[i]);
  }
  l.ring = longest + 2;
  return l;
}

void place_cells(TransducerLattice& l, std::int64_t cells, Places& places) {
  const transducer::CellSizes sizes(l.batch, cells,
                                    l.extra);  // the largest size for any result of draws_rnnt()
  places.put(l.head, sizes.head);
  places.put(l.log_p, sizes.log_p);
  places.put(l.records, sizes.records);
  places.put(l.alpha, sizes.alpha);
  places.put(l.beta, sizes.beta);
}
static_assert(sizeof(TransducerClip) == transducer::kClipBytes &&
              sizeof(TransducerHead) == transducer::kHeadBytes);

Status check_memory(const TransducerArgs& args, std::initializer_list<NamedPointer> pointers) {
  const int device = args.device.index;
  OCTAVO_TRY(check_device("[transducer]", device));
  for (const NamedPointer& p : pointers)
    OCTAVO_TRY(check_pointer(std::string("[transducer] ") + p.name, p.data, device));
  return check_stream("[transducer] ", static_cast<cudaStream_t>(args.stream), device);
}

Status queued(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return failed(std::string("[transducer] ") + what, error);
}

}  // namespace octavo::cuda
