// SPDX-License-Identifier: MIT
#include "offload/staging.h"

#include "status/first_error.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace octavo::offload {

Status Staging::set_memory(std::span<std::byte> memory, const Fence& caller) {
  if (memory.data() == memory_.data() && memory.size() == memory_.size()) return {};
  if (Status bad = flush(batches_); !bad.ok()) return bad;
  memory_ = memory;
  tables_of = 0;
  cursor = 0;
  return first_error({up_.queue.order_after(caller), work_.queue.order_after(caller)});
}

Result<StepScalars> Staging::copy_scalars(const StepScalars& scalars, void* stream) {
  scalar_slot_ = (scalar_slot_ + 1) % scalar_fences_.size();
  if (Status bad = flush(std::exchange(scalar_batches_[scalar_slot_], 0)); !bad.ok()) return bad;
  if (const Fence& used = scalar_fences_[scalar_slot_]; !used.passed()) {
    if (Status bad = queues_.order_stream_after(stream, used); !bad.ok()) return bad;
  }
  scalar_fences_[scalar_slot_] = {};
  std::byte* at = memory_.data() + static_cast<std::int64_t>(scalar_slot_) * kScalarSlotBytes;
  std::array<CopyRange, DeviceQueues::kMaxRanges> words;
  std::size_t count = 0;
  StepScalars kept = scalars;
  const auto copy = [&]<class T>(const T*& scalar) {
    static_assert(sizeof(T) <= DeviceQueues::kMaxRangeBytes && sizeof(T) % 4 == 0);
    if (scalar == nullptr) return;
    words[count++] = {at, scalar, sizeof(T)};
    scalar = reinterpret_cast<const T*>(at);
    at += sizeof(T);
  };
  static_assert(sizeof(GradNorm) + 3 * sizeof(float) <= kScalarSlotBytes);
  copy(kept.norm);
  copy(kept.lr);
  copy(kept.loss_scale);
  copy(kept.found_inf);
  if (Status bad = queues_.copy(stream, std::span(words).first(count)); !bad.ok()) return bad;
  return kept;
}

namespace {

class Queued final : public Fence::State {
 public:
  Queued(Staging& staging, std::uint64_t batch) : staging_(staging), batch_(batch) {}
  [[nodiscard]] bool passed() const override { return staging_.is_queued(batch_); }
  Status wait() const override { return first_error({staging_.flush(batch_), staging_.pump()}); }

 private:
  Staging& staging_;
  std::uint64_t batch_;
};

}  // namespace

Fence Staging::queued_fence(std::uint64_t batch) { return Fence(std::make_shared<Queued>(*this, batch)); }

std::uint64_t Staging::post_batch(std::function<Status(std::uint64_t)> queue) {
  waiting_.push_back(std::move(queue));
  return ++batches_;
}

// After an error of the queues no batch is enqueued, because its step may be destroyed soon.
Status Staging::fail(Status status) {
  if (failed_.ok()) failed_ = std::move(status);
  waiting_.clear();
  return failed_;
}

Status Staging::enqueue_next() {
  const auto queue = std::move(waiting_.front());
  const std::uint64_t batch = batches_ - waiting_.size() + 1;
  waiting_.pop_front();
  Status done;
  try {
    done = queue(batch);
  } catch (const std::exception& error) {  // a part of it may be enqueued
    done = Status::failed(std::string("[offload] a batch: ") + error.what());
  }
  return done.ok() ? done : fail(std::move(done));
}

Status Staging::pump() {
  while (!waiting_.empty()) {
    if (enqueued_.size() >= kMaxEnqueued) {
      if (!enqueued_.front().passed()) return {};
      enqueued_.pop_front();
    }
    if (Status bad = enqueue_next(); !bad.ok()) return bad;
  }
  return failed_;
}

Status Staging::flush(std::uint64_t batch) {
  while (!is_queued(batch)) {
    if (enqueued_.size() >= kMaxEnqueued) {
      if (Status bad = enqueued_.front().wait(); !bad.ok()) return fail(std::move(bad));
      enqueued_.pop_front();
    }
    if (Status bad = enqueue_next(); !bad.ok()) return bad;
  }
  return failed_;
}

void Staging::end_batch(std::uint64_t batch, const Fence& down) {
  ends_.push_back({batch, down});
  enqueued_.push_back(down);
}

Result<Fence> Staging::idle_fence() {
  if (Status bad = flush(batches_); !bad.ok()) return bad;
  return ends_.empty() ? Fence() : ends_.back().fence;
}

Status Staging::wait_for_batch(QueueProgress& progress, std::uint64_t batch) {
  if (batch <= progress.waited) return {};
  const auto end = std::ranges::find_if(ends_, [&](const BatchEnd& one) { return one.batch >= batch; });
  if (end == ends_.end()) return {};  // the batch has failed, and so do later ones
  if (Status bad = progress.queue.order_after(end->fence); !bad.ok()) return bad;
  progress.waited = end->batch;
  // The last one stays, because it implies all that are forgotten.
  while (ends_.size() > 1 && ends_.front().batch <= up_.waited) ends_.pop_front();
  return {};
}

Status Staging::claim_bytes(std::span<const std::byte> bytes, std::uint64_t batch, For what) {
  if (bytes.empty()) return {};
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t end = begin + bytes.size();
  std::uint64_t last = 0;
  auto at = uses_.upper_bound(begin);
  if (at != uses_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != uses_.end() && at->first < end) {
    const auto [from, use] = *at;
    const bool in_order = what == For::tables && use.what == For::tables;
    if (!in_order && use.batch != batch) last = std::max(last, use.batch);
    at = uses_.erase(at);
    if (from < begin) uses_.emplace(from, Use{begin, use.batch, use.what});
    if (use.end > end) at = uses_.emplace(end, use).first;
  }
  uses_.emplace(begin, Use{end, batch, what});
  return wait_for_batch(what == For::copies ? up_ : work_, last);
}

}  // namespace octavo::offload
