// SPDX-License-Identifier: MIT
#include "cuda/runtime/graph_use.h"

#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace octavo::cuda {
namespace {

// A workspace and the number of the capture that uses it. Numbers are never reused.
using Use = std::pair<const void*, unsigned long long>;
constexpr unsigned long long kForEver = 0;

struct Uses {
  std::mutex mutex;
  std::set<Use> live;
  std::uint64_t ended = 0;
};
Uses& uses() {
  static auto* const all = new Uses;  // a graph may be destroyed after static objects
  return *all;
}

void CUDART_CB forget(void* note) {
  const std::unique_ptr<Use> use(static_cast<Use*>(note));
  Uses& all = uses();
  const std::lock_guard lock(all.mutex);
  all.live.erase(*use);
  ++all.ended;
}

// Gets the graph that the stream is being captured into, and the capture's number.
cudaError_t captured_graph(cudaStream_t stream, cudaGraph_t& graph, unsigned long long& number) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
#if CUDART_VERSION >= 13000
  return cudaStreamGetCaptureInfo(stream, &status, &number, &graph, nullptr, nullptr, nullptr);
#else
  return cudaStreamGetCaptureInfo(stream, &status, &number, &graph, nullptr, nullptr);
#endif
}

// Registers a call of forget() for when the graph and its executable copies are destroyed. It calls CUDA, so
// no lock is held.
bool watch(cudaGraph_t graph, const Use& use) {
  auto note = std::make_unique<Use>(use);
  cudaUserObject_t object = nullptr;
  if (cudaUserObjectCreate(&object, note.get(), forget, 1, cudaUserObjectNoDestructorSync) != cudaSuccess)
    return false;
  (void)note.release();  // forget() owns it
  return cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove) == cudaSuccess;
}

void note_capture(const void* workspace, cudaStream_t stream) {
  Uses& all = uses();
  cudaGraph_t graph = nullptr;
  Use use{workspace, kForEver};
  const bool known = captured_graph(stream, graph, use.second) == cudaSuccess && graph != nullptr;
  if (!known) use.second = kForEver;
  {
    const std::lock_guard lock(all.mutex);
    if (!all.live.insert(use).second) return;
  }
  if (known && watch(graph, use)) return;
  (void)cudaGetLastError();  // so that a later call does not report it again
  const std::lock_guard lock(all.mutex);
  all.live.insert({workspace, kForEver});
}

}  // namespace

cudaError_t graph_use(const void* workspace, cudaStream_t stream, GraphUse& use) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &capture); error != cudaSuccess) {
    use.live = true;
    return error;
  }
  if (capture != cudaStreamCaptureStatusNone) note_capture(workspace, stream);
  Uses& all = uses();
  const std::lock_guard lock(all.mutex);
  const auto first = all.live.lower_bound({workspace, 0});
  use.live = first != all.live.end() && first->first == workspace;
  use.ended = all.ended;
  return cudaSuccess;
}

}  // namespace octavo::cuda
