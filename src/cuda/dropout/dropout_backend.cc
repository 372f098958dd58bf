// Dropout on a GPU: checks that its memory is on the device and launches the kernel on the caller's stream.
// SPDX-License-Identifier: MIT
#include "cuda/dropout/dropout.h"
#include "status/first_error.h"

#include "cuda/runtime/runtime.h"
#include "dropout/backend.h"

namespace octavo {

Status dropout_cuda(const DropoutArgs& args) {
  const int device = args.device.index;
  const auto stream = static_cast<cudaStream_t>(args.stream);
  OCTAVO_TRY(cuda::check_device("[dropout]", device));
  OCTAVO_TRY(cuda::check_pointer("[dropout] from", args.from, device));
  OCTAVO_TRY(cuda::check_pointer("[dropout] to", args.to, device));
  OCTAVO_TRY(cuda::check_pointer("[dropout] samples", args.samples, device));
  OCTAVO_TRY(cuda::check_stream("[dropout] ", stream, device));
  const cuda::DeviceScope scope(device);
  const DropoutRows rows(args);
  const cudaError_t error = cuda::drop(
      {args.from, args.to, args.samples, args.outer * args.batch * args.inner, args.batch, args.inner,
       rows.length, rows.count, rows.pitch, formula::dropout_base(args.seed, args.step), args.layer,
       args.dtype, formula::make_dropout(args.probability)},
      stream);
  if (error == cudaSuccess) return {};
  return cuda::failed("[dropout] its kernel on cuda:" + std::to_string(device), error);
}

}  // namespace octavo
