// FP8 on a GPU: checks of memory, and launches on the caller's stream.
// SPDX-License-Identifier: MIT
#include "cuda/fp8/cast.h"
#include "cuda/runtime/cublaslt.h"
#include "cuda/runtime/runtime.h"
#include "fp8/backend.h"
#include "fp8/invalid_argument.h"
#include "fp8/tiles.h"
#include "status/first_error.h"

#include <algorithm>
#include <limits>
#include <string>

namespace octavo::fp8 {
namespace {

constexpr std::uintptr_t kVector = 16;  // bytes
const std::string kName = "[fp8]";

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

Status check_place(Device device, void* stream) {
  return first_error({cuda::check_device(kName, device.index),
                      cuda::check_stream(std::string(kWhere), stream_of(stream), device.index)});
}
// A check of a pointer costs a call of the driver, so only one buffer is checked.
Status check_memory(const char* field, const void* data, int device) {
  return cuda::check_pointer(kWhere + std::string(field), data, device);
}
Status check_aligned(const char* field, const void* data) {
  if (reinterpret_cast<std::uintptr_t>(data) % kVector == 0) return {};
  return invalid(field, "an address that is no multiple of 16", "a multiple of 16 on a GPU");
}
Status done(const char* what, int device, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return cuda::failed(kWhere + std::string(what) + " on cuda:" + std::to_string(device), error);
}

cuda::CodesWork codes_work(const CastArgs& args, const Codes& out, bool transposed) {
  if (out.data == nullptr) return {};
  const std::int64_t rows = padded(transposed ? args.columns : args.rows);
  const std::int64_t inner = padded(transposed ? args.rows : args.columns);
  const Tiling shared = tiling(args.recipe, args.operand);
  const ScaleMap map = scale_map(shared, rows, inner);
  return {out.data,   out.inverse, out.scale, shared == Tiling::tensor ? 0 : map.count,
          map.across, out.element};
}

// Finishes the tree over rows: a cast writes the sums of tiles, and then each level sums kSumRows rows into
// one. The memory of a level follows that of the previous level.
cudaError_t finish_sums(const CastArgs& args, float* to, cudaStream_t stream) {
  auto* from = static_cast<float*>(args.workspace);
  for (std::int64_t rows = tiles_in(args.rows);; rows = summed_rows(rows)) {
    const bool last = rows <= kSumRows;
    float* const next = from + args.columns * rows;
    const cudaError_t error = cuda::sum_rows(from, rows, args.columns, last ? to : next, last, stream);
    if (last || error != cudaSuccess) return error;
    from = next;
  }
}

int arch_of(int device) {
  int major = 0, minor = 0;
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major * 100 + minor * 10;
}

}  // namespace

Status cast_cuda(const CastArgs& args) {
  const int device = args.device.index;
  Status bad = first_error({check_place(args.device, args.stream), check_memory("from", args.from, device),
                            check_aligned("by_rows.data", args.by_rows.data),
                            check_aligned("transposed.data", args.transposed.data)});
  if (!bad.ok()) return bad;
  const std::int64_t tiles = args.groups * tiles_in(padded(args.rows)) * tiles_in(padded(args.columns));
  if (tiles > std::numeric_limits<std::int32_t>::max())
    return invalid("rows", args.rows, "at most 2^31 tiles of 128 x 128 elements on a GPU");
  const cuda::DeviceScope scope(device);
  const Tiling shared = tiling(args.recipe, args.operand);
  const Codes &by_rows = args.by_rows, &transposed = args.transposed;
  const bool alike =
      by_rows.data != nullptr && transposed.data != nullptr && by_rows.element == transposed.element &&
      (shared == Tiling::tile_128x128 ||
       (shared == Tiling::tensor && (args.recipe != Recipe::delayed || by_rows.scale == transposed.scale)));
  cuda::CastWork work{args.from,
                      args.dtype,
                      args.groups,
                      args.rows,
                      args.columns,
                      args.recipe,
                      shared,
                      args.activation,
                      codes_work(args, by_rows, false),
                      codes_work(args, transposed, true),
                      args.amax,
                      alike,
                      nullptr};
  const cudaStream_t stream = stream_of(args.stream);
  const int arch = arch_of(device);
  if (args.bias_grad == nullptr) return done("a cast", device, cuda::cast_fp8(work, arch, stream));
  work.sums = static_cast<float*>(args.workspace);
  cudaError_t error = cuda::cast_fp8(work, arch, stream);
  if (error == cudaSuccess) error = finish_sums(args, args.bias_grad, stream);
  return done("a cast with sums over rows", device, error);
}

Status matmul_cuda(const MatmulArgs& args) {
  const int device = args.device.index;
  Status bad = first_error({check_place(args.device, args.stream), check_memory("to", args.to, device),
                            check_aligned("a.data", args.a.data), check_aligned("b.data", args.b.data),
                            check_aligned("to", args.to)});
  if (!bad.ok()) return bad;
  if (args.a.inner == 0) {  // an empty sum, which cuBLASLt does not support
    if (args.add) return {};
    const cuda::DeviceScope scope(device);
    const std::int64_t bytes = args.a.rows * args.b.rows * dtype_bytes(args.dtype);
    return done("zeros", device,
                cudaMemsetAsync(args.to, 0, static_cast<std::size_t>(bytes), stream_of(args.stream)));
  }
  if (args.workspace == nullptr) {
    return invalid("workspace", "null",
                   "a buffer of " + std::to_string(workspace_bytes(args.device)) + " bytes on a GPU");
  }
  const cuda::DeviceScope scope(device);
  const Matrix &a = args.a, &b = args.b;
  cuda::Product product;
  // If scales change along the sum, cuBLASLt always moves sums to fp32, and rejects the other mode.
  const bool blocks = a.tiling == Tiling::tile_1x128 || b.tiling == Tiling::tile_1x128;
  product.fp8 = cuda::Fp8Operands{{a.element, a.tiling}, {b.element, b.tiling}, args.fast_sums && !blocks};
  product.to = args.dtype;
  product.rows = a.rows;
  product.columns = b.rows;
  product.inner = a.inner;
  product.b_turned = true;
  product.a_pitch = a.inner;
  product.b_pitch = b.inner;
  product.to_pitch = b.rows;
  product.add = args.add;
  cuda::ProductMemory memory;
  memory.a = a.data;
  memory.b = b.data;
  memory.to = args.to;
  memory.a_inverse = a.inverse;
  memory.b_inverse = b.inverse;
  return cuda::multiply(product, memory, args.workspace, stream_of(args.stream));
}

Status update_scales_cuda(const ScaleUpdate& update) {
  const int device = update.device.index;
  if (Status bad = first_error(
          {check_place(update.device, update.stream), check_memory("states", update.states, device)});
      !bad.ok())
    return bad;
  const cuda::DeviceScope scope(device);
  return done("an update of scales", device, cuda::update_fp8_scales(update, stream_of(update.stream)));
}

}  // namespace octavo::fp8
