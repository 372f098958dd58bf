// SPDX-License-Identifier: MIT
#include "offload/host_grads.h"

#include "offload/host_limits.h"
#include "optimizers/norm_chunks.h"
#include "status/first_error.h"

#include <algorithm>
#include <bit>

namespace octavo::offload {
namespace {

constexpr std::int64_t kTransferBytes = std::int64_t{512} << 20;  // a soft limit for all transfer buffers

// The number of bytes of gradients that have no memory yet.
std::int64_t expected_bytes(std::span<OffloadedTensor* const> tensors) {
  std::int64_t bytes = 0;
  for (const OffloadedTensor* tensor : tensors) {
    if (tensor->host_grad.bytes > 0) continue;
    const DType dtype = tensor->grads_in_fp32 ? DType::f32 : tensor->args.spec.param_dtype;
    bytes += tensor->args.spec.numel * dtype_bytes(dtype) + 256;
  }
  return bytes;
}

Status record_fence(Queue& queue, Fence& out) {
  auto fence = queue.record_fence();
  if (fence.ok()) out = std::move(*fence);
  return fence.status();
}

}  // namespace

Status HostGrads::reserve(OffloadedTensor& tensor, std::int64_t bytes,
                          std::span<OffloadedTensor* const> all) {
  if (tensor.host_grad.bytes >= bytes) return {};
  Status bad =
      first_error({tensor.grad_released.wait(), tensor.grad_complete.wait(), tensor.grad_summed.wait()});
  if (!bad.ok()) return errors_.record(bad);
  auto buffer =
      arena_.allocate(bytes, std::max(bytes, expected_bytes(all)), needs_pinned_memory(tensor.device));
  if (buffer.ok()) tensor.host_grad = std::move(*buffer);
  return buffer.status();
}

// Returns a buffer that is free, or the one that has been in use longest.
Result<HostGrads::TransferBuffer*> HostGrads::find_transfer_buffer(std::int64_t bytes, bool pin) {
  TransferBuffer* oldest = nullptr;
  std::int64_t all = 0;
  for (TransferBuffer& one : transfer_buffers_) {
    all += one.buffer.bytes;
    if (one.buffer.bytes < bytes) continue;
    if (one.free.passed()) return &one;
    if (oldest == nullptr) oldest = &one;
  }
  if (oldest != nullptr && all + bytes > kTransferBytes) {
    // The next call uses the next buffer.
    const auto at = transfer_buffers_.begin() + (oldest - transfer_buffers_.data());
    std::rotate(at, at + 1, transfer_buffers_.end());
    return &transfer_buffers_.back();
  }
  auto buffer = arena_.allocate(bytes, bytes, pin);
  if (!buffer.ok()) return buffer.status();
  return &transfer_buffers_.emplace_back(TransferBuffer{std::move(*buffer), {}});
}

Status HostGrads::add(OffloadedTensor& tensor, const void* grad, DType dtype, DeviceQueues& queues,
                      std::span<OffloadedTensor* const> all, bool for_step) {
  const std::int64_t numel = tensor.args.spec.numel;
  const bool first = !tensor.has_host_grad;
  const bool with_sums = !for_step && sums_on_arrival_;
  const DType host_dtype = !first                              ? tensor.host_grad_dtype
                           : !for_step && tensor.grads_in_fp32 ? DType::f32
                                                               : dtype;
  const std::int64_t bytes = numel * dtype_bytes(host_dtype);
  if (Status bad = reserve(tensor, bytes, all); !bad.ok()) return bad;
  if (tensor.grad_sums == nullptr) tensor.grad_sums = std::make_shared<GradSums>();

  Queue& down = queues.down();
  Queue& host = queues.host();
  // The first gradient overwrites memory that the last step reads, or gradients that were dropped.
  const auto order_first = [&](Queue& queue) -> Status {
    if (!first) return {};
    return first_error({order_after(queue, tensor.grad_released), order_after(queue, tensor.grad_complete),
                        order_after(queue, tensor.grad_summed)});
  };
  const std::shared_ptr<GradSums> sums = with_sums ? tensor.grad_sums : nullptr;
  Status bad;
  if (numel == 0) {
    // There is nothing to copy.
  } else if (first && host_dtype == dtype) {
    bad = order_first(down);
    if (bad.ok()) bad = down.copy(tensor.host_grad.get(), grad, bytes, "gradients down");
    if (bad.ok()) bad = record_fence(down, tensor.grad_copied);
    tensor.grad_complete = tensor.grad_copied;
    tensor.grad_summed = {};
    if (bad.ok() && sums != nullptr) {
      const auto sum = [view = GradView{tensor.host_grad.get(), host_dtype, numel}, sums](void* /*stream*/) {
        return sum_gradient(view, *sums, host_threads());
      };
      bad = host.order_after(tensor.grad_copied);
      if (bad.ok()) bad = host.run(sum, "sums");
      if (bad.ok()) bad = record_fence(host, tensor.grad_summed);
    }
  } else {
    const std::int64_t from_bytes = numel * dtype_bytes(dtype);
    const auto transfer = find_transfer_buffer(from_bytes, needs_pinned_memory(tensor.device));
    if (!transfer.ok()) return transfer.status();
    void* const from = (*transfer)->buffer.get();
    const auto accumulate = [to = tensor.host_grad.get(), host_dtype, from, dtype, numel, first,
                             sums](void* /*stream*/) {
      return add_gradient(to, host_dtype, from, dtype, numel, first, sums.get(), host_threads());
    };
    bad = down.order_after((*transfer)->free);
    if (bad.ok()) bad = down.copy(from, grad, from_bytes, "gradients down");
    if (bad.ok()) bad = record_fence(down, tensor.grad_copied);
    if (bad.ok()) bad = order_first(host);
    if (bad.ok()) bad = host.order_after(tensor.grad_copied);
    if (bad.ok()) bad = host.run(accumulate, "add gradients");
    if (bad.ok()) bad = record_fence(host, tensor.grad_complete);
    tensor.grad_summed = (*transfer)->free = tensor.grad_complete;
  }
  if (!bad.ok()) return errors_.record(std::move(bad));
  tensor.has_host_grad = true;
  tensor.host_grad_dtype = host_dtype;
  tensor.device_grad_dtype = dtype;
  tensor.has_grad_sums = with_sums;
  return {};
}

Result<GradSums*> HostGrads::complete_sums(OffloadedTensor& tensor, int threads) {
  if (Status bad = tensor.grad_complete.wait(); !bad.ok()) return errors_.record(bad);
  if (Status bad = tensor.grad_summed.wait(); !bad.ok()) return errors_.record(bad);
  if (!tensor.has_grad_sums) {
    const GradView view{tensor.host_grad.get(), tensor.host_grad_dtype, tensor.args.spec.numel};
    if (Status bad = sum_gradient(view, *tensor.grad_sums, host_threads(threads)); !bad.ok()) return bad;
    tensor.has_grad_sums = true;
  }
  return tensor.grad_sums.get();
}

Status HostGrads::norm(const NormCall& call, DeviceQueues& queues) {
  Queue& down = queues.down();
  Queue& up = queues.up();
  std::span<const double> device_chunks;
  if (call.backend != nullptr) {
    const auto chunks = call.backend->run_chunks(call.workspace, call.out, call.stream, call.threads);
    if (!chunks.ok()) return chunks.status();
    device_chunks = *chunks;
  }
  if (Status bad = norm_sent_.wait(); !bad.ok()) return errors_.record(bad);
  const auto bytes = static_cast<std::int64_t>(sizeof(GradNorm) + device_chunks.size_bytes());
  if (norm_memory_.bytes < bytes) {
    auto buffer = arena_.allocate(bytes, bytes, needs_pinned_memory(call.device));
    if (!buffer.ok()) return buffer.status();
    norm_memory_ = std::move(*buffer);
  }
  auto* const norm = reinterpret_cast<GradNorm*>(norm_memory_.get());
  auto* chunks = reinterpret_cast<double*>(norm_memory_.get() + sizeof(GradNorm));
  const auto caller = queues.record_fence(call.stream);
  if (!caller.ok()) return errors_.record(caller.status());
  *norm = {};
  if (call.backend != nullptr) {
    Status bad = down.order_after(*caller);
    if (bad.ok()) bad = down.copy(norm, call.out, sizeof *norm, "norm down");
    if (bad.ok()) {
      bad = down.copy(chunks, device_chunks.data(), static_cast<std::int64_t>(device_chunks.size_bytes()),
                      "norm down");
    }
    const auto fence = record_fence_unless(bad, down);
    bad = fence.ok() ? fence->wait() : fence.status();
    if (!bad.ok()) return errors_.record(bad);
  }
  std::vector<double> all;
  auto max_bits = std::bit_cast<std::uint32_t>(static_cast<float>(norm->max));
  std::int64_t nonfinite = norm->nonfinite;
  for (const NormGrad& grad : call.grads) {
    if (grad.tensor == nullptr) {
      const std::int64_t count = chunks_of(grad.numel);
      all.insert(all.end(), chunks, chunks + count);
      chunks += count;
      continue;
    }
    const auto sums = complete_sums(*grad.tensor, call.threads);
    if (!sums.ok()) return sums.status();
    all.insert(all.end(), (*sums)->chunks.begin(), (*sums)->chunks.end());
    max_bits = std::max(max_bits, (*sums)->max_bits);
    nonfinite += (*sums)->nonfinite;
  }
  *norm = join_sums(all, max_bits, nonfinite);

  Status bad = up.order_after(*caller);
  if (bad.ok()) bad = up.copy(call.out, norm, sizeof *norm, "norm up");
  auto sent = record_fence_unless(bad, up);
  if (!sent.ok()) return errors_.record(sent.status());
  norm_sent_ = std::move(*sent);
  return errors_.record(queues.order_stream_after(call.stream, norm_sent_));
}

}  // namespace octavo::offload
