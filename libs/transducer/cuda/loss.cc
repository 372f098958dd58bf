// The transducer loss on logits on a GPU: its memory, and its launches on the caller's stream. Lengths are on
// the device, so the host neither plans with them nor waits.
// SPDX-License-Identifier: MIT
#include "cuda/runtime/runtime.h"
#include "status/first_error.h"
#include "transducer/cuda/call.h"
#include "transducer/cuda/logits.h"
#include "transducer/invalid_argument.h"

#include <algorithm>

namespace octavo::transducer {
namespace {

void place(cuda::TransducerLattice& lattice, const TransducerArgs& args, cuda::Places& places) {
  places.put(lattice.clips, args.batch * std::int64_t{sizeof(cuda::TransducerClip)});
  cuda::place_cells(lattice, args.batch * args.frames * args.positions, places);
}

// Fills in all fields but the gradients; `places` gives its memory.
cuda::LogitsWork work_of(const TransducerArgs& args, cuda::Places& places) {
  const std::int64_t durations = duration_outputs(args);
  cuda::LogitsWork work{};
  work.lattice = cuda::lattice_of(args, key_of(args, false));
  work.dtype = args.dtype;
  work.tokens = {args.token_logits.data, strides_of(args, args.token_logits.strides, args.tokens)};
  work.durations = {args.duration_logits.data, strides_of(args, args.duration_logits.strides, durations)};
  place(work.lattice, args, places);
  return work;
}

Status check_inputs(const TransducerArgs& args, const void* numbers, const char* name) {
  return cuda::check_memory(args, {{"token_logits", args.token_logits.data},
                                   {"duration_logits", args.duration_logits.data},
                                   {"targets", args.targets},
                                   {"logit_lengths", args.logit_lengths},
                                   {"target_lengths", args.target_lengths},
                                   {"workspace", args.workspace.data()},
                                   {name, numbers}});
}

}  // namespace

Result<std::int64_t> workspace_bytes_cuda(const TransducerArgs& args) {
  OCTAVO_TRY(check_gpu_limits(args));
  constexpr std::int64_t kRows = std::int64_t{1} << 33;  // a launch has 2^31 - 1 blocks
  if (args.batch * args.frames * args.positions > kRows)
    return invalid("frames", args.frames, "batch * frames * positions up to 2^33 on a GPU");
  cuda::Places places;
  cuda::TransducerLattice sizes{};  // durations may have any value here
  sizes.batch = static_cast<std::int32_t>(args.batch);
  sizes.extra = static_cast<std::int32_t>(std::min(duration_outputs(args), kMaxTransducerDurations));
  place(sizes, args, places);
  return places.bytes();
}

Status loss_cuda(const TransducerArgs& args, float* losses) {
  OCTAVO_TRY(check_inputs(args, losses, "losses"));
  const cuda::DeviceScope scope(args.device.index);
  const auto stream = static_cast<cudaStream_t>(args.stream);
  if (args.batch == 0) return cuda::queued("an empty sum", cudaMemsetAsync(losses, 0, 4, stream));
  cuda::Places places(args.workspace.data());
  const cuda::LogitsWork work = work_of(args, places);
  Status status = cuda::queued(
      "find_clips", cuda::find_clips(work.lattice, args.logit_lengths, args.target_lengths, true, stream));
  if (status.ok()) status = cuda::queued("logits_records", cuda::logits_records(work, stream));
  if (status.ok()) {
    const auto positions = static_cast<std::int32_t>(args.positions);
    status = cuda::queued("walk_lattices", cuda::walk_lattices(work.lattice, positions, stream));
  }
  if (status.ok()) status = cuda::queued("put_losses", cuda::put_losses(work.lattice, losses, stream));
  return status;
}

Status gradient_cuda(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
                     TransducerView<void> duration_grad) {
  OCTAVO_TRY(check_inputs(args, grad_losses, "grad_losses"));
  OCTAVO_TRY(
      cuda::check_memory(args, {{"token_grad", token_grad.data}, {"duration_grad", duration_grad.data}}));
  const cuda::DeviceScope scope(args.device.index);
  const auto stream = static_cast<cudaStream_t>(args.stream);
  cuda::Places places(args.workspace.data());
  cuda::LogitsWork work = work_of(args, places);
  work.token_grad = {token_grad.data, strides_of(args, token_grad.strides, args.tokens)};
  work.duration_grad = {duration_grad.data, strides_of(args, duration_grad.strides, duration_outputs(args))};
  work.grad_losses = grad_losses;
  // The clips are computed again, so that a workspace of another loss causes no access outside the tensors.
  Status status = cuda::queued(
      "find_clips", cuda::find_clips(work.lattice, args.logit_lengths, args.target_lengths, false, stream));
  if (status.ok()) status = cuda::queued("logits_gradients", cuda::logits_gradients(work, stream));
  return status;
}

}  // namespace octavo::transducer
