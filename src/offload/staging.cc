// SPDX-License-Identifier: MIT
#include "offload/staging.h"

#include "status/first_error.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace octavo::offload {

Status Staging::place(std::span<std::byte> memory, const Mark& caller) {
  if (memory.data() == memory_.data() && memory.size() == memory_.size()) return {};
  if (Status bad = flush(batches_); !bad.ok()) return bad;
  memory_ = memory;
  tables_of = 0;
  cursor = 0;
  return first_error({up_.queue.after(caller), work_.queue.after(caller)});
}

Result<StepScalars> Staging::keep(const StepScalars& scalars, void* stream) {
  scalar_place_ = (scalar_place_ + 1) % scalar_marks_.size();
  if (Status bad = flush(std::exchange(scalar_tellers_[scalar_place_], 0)); !bad.ok()) return bad;
  if (const Mark& used = scalar_marks_[scalar_place_]; !used.passed()) {
    if (Status bad = link_.order(stream, used); !bad.ok()) return bad;
  }
  scalar_marks_[scalar_place_] = {};
  std::byte* at = memory_.data() + static_cast<std::int64_t>(scalar_place_) * kScalarBytes;
  std::array<Link::Words, Link::kMostWords> words;
  std::size_t count = 0;
  StepScalars kept = scalars;
  const auto copy = [&]<class T>(const T*& scalar) {
    static_assert(sizeof(T) <= Link::kMostBytes && sizeof(T) % 4 == 0);
    if (scalar == nullptr) return;
    words[count++] = {at, scalar, sizeof(T)};
    scalar = reinterpret_cast<const T*>(at);
    at += sizeof(T);
  };
  static_assert(sizeof(GradNorm) + 3 * sizeof(float) <= kScalarBytes);
  copy(kept.norm);
  copy(kept.lr);
  copy(kept.loss_scale);
  copy(kept.found_inf);
  if (Status bad = link_.copy(stream, std::span(words).first(count)); !bad.ok()) return bad;
  return kept;
}

namespace {

class Queued final : public Mark::State {
 public:
  Queued(Staging& staging, std::uint64_t batch) : staging_(staging), batch_(batch) {}
  [[nodiscard]] bool passed() const override { return staging_.is_queued(batch_); }
  Status wait() const override { return first_error({staging_.flush(batch_), staging_.pump()}); }

 private:
  Staging& staging_;
  std::uint64_t batch_;
};

}  // namespace

Mark Staging::queued(std::uint64_t batch) { return Mark(std::make_shared<Queued>(*this, batch)); }

std::uint64_t Staging::post(std::function<Status(std::uint64_t)> queue) {
  waiting_.push_back(std::move(queue));
  return ++batches_;
}

// The queues have failed, and so does everything behind it. What is left is not queued any more; the steps
// that have posted it may be gone soon.
Status Staging::fail(Status status) {
  if (failed_.ok()) failed_ = std::move(status);
  waiting_.clear();
  return failed_;
}

Status Staging::queue_next() {
  const auto queue = std::move(waiting_.front());
  const std::uint64_t batch = batches_ - waiting_.size() + 1;
  waiting_.pop_front();
  Status done;
  try {
    done = queue(batch);
  } catch (const std::exception& error) {  // half of it may be queued, and nobody knows which
    done = Status::failed(std::string("[offload] a batch: ") + error.what());
  }
  return done.ok() ? done : fail(std::move(done));
}

Status Staging::pump() {
  while (!waiting_.empty()) {
    if (under_way_.size() >= kMost) {
      if (!under_way_.front().passed()) return {};
      under_way_.pop_front();
    }
    if (Status bad = queue_next(); !bad.ok()) return bad;
  }
  return failed_;
}

Status Staging::flush(std::uint64_t batch) {
  while (!is_queued(batch)) {
    if (under_way_.size() >= kMost) {
      if (Status bad = under_way_.front().wait(); !bad.ok()) return fail(std::move(bad));
      under_way_.pop_front();
    }
    if (Status bad = queue_next(); !bad.ok()) return bad;
  }
  return failed_;
}

void Staging::end(std::uint64_t batch, const Mark& down) {
  marks_.push_back({batch, down});
  under_way_.push_back(down);
}

Result<Mark> Staging::idle() {
  if (Status bad = flush(batches_); !bad.ok()) return bad;
  return marks_.empty() ? Mark() : marks_.back().mark;
}

Status Staging::wait(Waiter& waiter, std::uint64_t batch) {
  if (batch <= waiter.waited) return {};
  const auto over = std::ranges::find_if(marks_, [&](const Over& one) { return one.batch >= batch; });
  if (over == marks_.end()) return {};  // it has failed before its end, and so does everything behind it
  if (Status bad = waiter.queue.after(over->mark); !bad.ok()) return bad;
  waiter.waited = over->batch;
  // The last one stays: it stands for all that are forgotten.
  while (marks_.size() > 1 && marks_.front().batch <= up_.waited) marks_.pop_front();
  return {};
}

Status Staging::claim(std::span<const std::byte> bytes, std::uint64_t batch, For what) {
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
  return wait(what == For::copies ? up_ : work_, last);
}

}  // namespace octavo::offload
