// The operations of NormOps on a GPU: kernels of a few threads, queued on the caller's stream.
// SPDX-License-Identifier: MIT
#include "cuda/norm/norm_ops.h"

#include "cuda/runtime/graph_use.h"
#include "cuda/runtime/runtime.h"
#include "cuda/runtime/upload.h"
#include "optimizers/backend.h"
#include "status/first_error.h"

namespace octavo {
namespace cuda {
namespace {

// Returns the bytes of a table of pointers. Uploads write complete words of 16 bytes.
std::int64_t table_bytes(std::size_t pointers) {
  return (static_cast<std::int64_t>(pointers) * 8 + 15) / 16 * 16;
}

class CudaNormOps final : public NormOps {
 public:
  explicit CudaNormOps(int device) : device_(device) {}

  Status check_pointer(const std::string& where, const void* data) override {
    return cuda::check_pointer(where, data, device_);
  }
  Status check_stream(const std::string& where, void* stream) override {
    return cuda::check_stream(where + " ", static_cast<cudaStream_t>(stream), device_);
  }
  bool capturing(void* stream) override {
    const DeviceScope scope(device_);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture) == cudaSuccess)
      return capture != cudaStreamCaptureStatusNone;
    (void)cudaGetLastError();
    return true;  // the step queries again and returns the error
  }
  bool in_graph(const void* workspace, void* stream) override {
    const DeviceScope scope(device_);
    GraphUse use;
    // On an error `use.live` is true; the step queries the stream again and returns the error.
    if (graph_use(workspace, static_cast<cudaStream_t>(stream), use) != cudaSuccess) (void)cudaGetLastError();
    return use.live;
  }

  Status clear(GradNorm* out, void* stream) override {
    return run("clearing a norm", stream,
               [&](cudaStream_t on) { return cudaMemsetAsync(out, 0, sizeof *out, on); });
  }
  Status copy_previous(const GradNorm* previous, const GradNorm* own, GradNorm* out, void* stream) override {
    return run("copy_previous_kernel", stream,
               [&](cudaStream_t on) { return cuda::copy_previous(previous, own, out, on); });
  }
  Status join(std::span<const GradNorm* const> parts, std::span<std::byte> workspace, GradNorm* out,
              void* stream) override {
    return run("join_kernel", stream, [&](cudaStream_t on) {
      const cudaError_t error = upload(std::as_bytes(parts), workspace.data(), on);
      if (error != cudaSuccess) return error;
      return cuda::join(reinterpret_cast<const GradNorm* const*>(workspace.data()),
                        static_cast<std::int64_t>(parts.size()),
                        reinterpret_cast<double*>(workspace.data() + table_bytes(parts.size())), out, on);
    });
  }
  [[nodiscard]] std::int64_t join_bytes(std::size_t parts) const override {
    return table_bytes(parts) + static_cast<std::int64_t>(parts) * 8;
  }
  Status store_previous(const GradNorm* total, GradNorm* previous, void* stream) override {
    return run("store_previous_kernel", stream,
               [&](cudaStream_t on) { return cuda::store_previous(total, previous, on); });
  }
  Status write_report(const GradNorm* norm, const float* found_inf, StepReport* report,
                      void* stream) override {
    return run("write_report_kernel", stream,
               [&](cudaStream_t on) { return cuda::write_report(norm, found_inf, report, on); });
  }

 private:
  template <class Fn>
  Status run(const char* what, void* stream, Fn&& fn) const {
    const DeviceScope scope(device_);
    const cudaError_t error = fn(static_cast<cudaStream_t>(stream));
    if (error == cudaSuccess) return {};
    return failed(std::string("[engine] ") + what + " on cuda:" + std::to_string(device_), error);
  }

  int device_;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<NormOps>> make_cuda_norm_ops(const std::string& where, int device) {
  OCTAVO_TRY(cuda::check_device(where, device));
  return std::unique_ptr<NormOps>(std::make_unique<cuda::CudaNormOps>(device));
}

}  // namespace octavo
