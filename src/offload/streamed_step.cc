// The step of tensors whose states pass through device memory. For each batch the states are copied up, the
// device's kernels update them and the weights, and the states are copied down. Fences let one batch go up
// while the batch before it is updated and the one before that goes down. A step posts all its batches, and
// Staging enqueues a few ahead.
//
// Staging memory is reused when the last batch that used it has been copied down (Staging). Only the work
// queue reads and writes the device's weights and gradients, after the caller's fence. States are copied up
// before that fence, because only offloaded steps use them. The kernels' tables are in staging memory too and
// are written by the work queue, in its order.
// SPDX-License-Identifier: MIT
#include "cpu/threads.h"
#include "formula/decide.h"
#include "offload/batches.h"
#include "offload/offloaded_step.h"
#include "optimizers/backend.h"
#include "optimizers/checks.h"
#include "optimizers/format_resolution.h"
#include "status/first_error.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>

namespace octavo::offload {
namespace {

// The kernels of a batch. Queued work shares the ownership; only the work queue calls `step`.
class BatchKernels {
 public:
  explicit BatchKernels(std::unique_ptr<StepBackend> backend) : backend_(std::move(backend)) {}

  Status step(const std::vector<const void*>& grads, bool write_tables, const StepArgs& args) {
    if (write_tables) backend_->forget_workspace();
    if (grads != bound_) {
      if (Status bad = backend_->bind_grads(grads); !bad.ok()) return bad;
      bound_ = grads;
    }
    return backend_->step(args).status();
  }
  [[nodiscard]] std::int64_t workspace_bytes() const { return backend_->workspace_bytes(); }

 private:
  std::unique_ptr<StepBackend> backend_;
  std::vector<const void*> bound_;
};

// A batch and its location in staging memory.
struct PlacedBatch : Batch {
  std::shared_ptr<BatchKernels> kernels{};
  std::int64_t at = 0, tables_at = 0;
  bool fits_grads = false;  // the location has memory for gradients that are in host memory
};

class StreamedStep final : public OffloadedStep {
 public:
  StreamedStep(const GroupConfig& config, std::span<const StepTensor> tensors, Staging& staging,
               std::span<std::int64_t* const> counts)
      : config_(config), staging_(staging), queues_(staging.queues()), counts_(counts.begin(), counts.end()) {
    for (const StepTensor& tensor : tensors) tensors_.push_back(tensor.args);
  }

  // Batches that are not enqueued yet use this object.
  ~StreamedStep() override { (void)staging_.flush(posted_); }

  Status make(std::span<const StepTensor> tensors, const StreamSizes& sizes) {
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return tensors[i].order; });
    auto made = make_batches(config_, tensors_, order, sizes.batch, queues_);
    if (!made.ok()) return made.status();
    for (Batch& batch : *made) batches_.emplace_back().Batch::operator=(std::move(batch));
    if (batches_.empty()) batches_.emplace_back();  // an empty batch advances the step counts
    states_bytes_ = bytes_of_all(sizes.all, &Batch::states_bytes);
    bytes_ = bytes_of_all(std::max(sizes.all, 2 * (sizes.batch + sizes.batch / 16)), &Batch::bytes);
    // The size of the tables is known when the kernels exist. The addresses do not matter yet.
    return make_kernels(reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20));
  }

  [[nodiscard]] std::int64_t staging_bytes(bool host_grads) const override {
    return Staging::kHeadBytes + (host_grads ? bytes_ : states_bytes_) + tables_bytes_;
  }

  Result<StepResult> step(const StepCall& call) override {
    if (Status bad = check(call); !bad.ok()) return bad;
    if (Status bad = staging_.set_memory(call.staging, call.caller); !bad.ok()) return bad;
    // Batches of the previous step that are not enqueued yet use what changes here.
    if (Status bad = staging_.flush(posted_); !bad.ok()) return bad;
    StepResult result{{}, std::vector<TensorFences>(tensors_.size())};
    auto now = std::make_shared<StepState>(StepState{call.args, call.caller});
    if (config_.device.kind == DeviceKind::cpu) {
      result.report = decide(now->args);
      if (result.report.skipped) return result;
    } else {
      result.report.pending = call.args.skip_nonfinite || call.args.scalars.found_inf != nullptr;
      if (Status bad = copy_scalars(*now); !bad.ok()) return bad;
    }
    if (Status bad = locate_batches(call.grads); !bad.ok()) return bad;
    now->write_tables = std::exchange(staging_.tables_of, number_) != number_;
    now->grads.assign(call.grads.begin(), call.grads.end());
    now->last = staging_.posted() + batches_.size();
    if (now->scalar_slot) staging_.hold_scalars_for_batch(*now->scalar_slot, now->last);
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const auto fences = std::make_shared<BatchFences>();
      posted_ = staging_.post_batch(
          [this, i, now, fences](std::uint64_t number) { return enqueue(i, *now, number, *fences); });
      const Fence queued = staging_.queued_fence(posted_);
      const std::shared_ptr<Fence> up(fences, &fences->up), work(fences, &fences->work);
      for (const Chunk& chunk : batches_[i].chunks) {
        if (chunk.last)
          result.tensors[chunk.tensor] = {{queued, work},
                                          {queued, call.grads[chunk.tensor].on_host ? up : work}};
      }
    }
    if (Status bad = staging_.pump(); !bad.ok()) return bad;
    return result;
  }

 private:
  // The data that the batches of one step share until they are enqueued.
  struct StepState {
    StepArgs args;
    Fence caller;
    bool write_tables = false;
    std::optional<std::size_t> scalar_slot{};
    std::uint64_t last = 0;  // number of the step's last batch
    std::vector<StepGrad> grads{};
  };
  struct BatchFences {
    Fence up, work;
  };

  // Staging bytes of the batches: at least the largest batch, at most `limit` or twice all batches.
  std::int64_t bytes_of_all(std::int64_t limit, std::int64_t Batch::*bytes) const {
    std::int64_t largest = 0, all = 0;
    for (const Batch& batch : batches_) {
      largest = std::max(largest, Staging::aligned(batch.*bytes));
      all += Staging::aligned(batch.*bytes);
    }
    return std::max(largest, std::min(Staging::aligned(limit), 2 * all));
  }

  Status check(const StepCall& call) const {
    if (call.args.sums.add != nullptr) {
      return Status::unsupported(tag(config_) +
                                 " offload: tensors that are measured together with other ranks cannot be "
                                 "streamed; keep their states on the device");
    }
    if (call.args.skip_nonfinite && call.args.scalars.norm == nullptr) {
      return Status::invalid(tag(config_) + " scalars.norm: got null, expected the norm of the gradients, " +
                             "because skip_nonfinite is on and states are streamed");
    }
    const std::int64_t needed = staging_bytes(std::ranges::any_of(call.grads, &StepGrad::on_host));
    if (static_cast<std::int64_t>(call.staging.size()) < needed) {
      return Status::invalid(tag(config_) + " staging: got " + std::to_string(call.staging.size()) +
                             " bytes, expected " + std::to_string(needed) + " (staging_bytes)");
    }
    return {};
  }

  // On the CPU all scalars are known now. Only numbers remain in `args`.
  StepReport decide(StepArgs& args) const {
    const cpu::FloatMode mode;
    const formula::StepInputs order = formula::step_inputs(describe(config_.algorithm)->decay, args);
    const formula::Decision decision = formula::decide(order, 0);
    formula::publish(order, decision);
    if (!decision.report.skipped) {
      for (std::int64_t* count : counts_) ++*count;
    }
    args.hyper = decision.hyper;
    args.step = decision.step;
    args.grad_factor = decision.factor;
    args.clip_grad_norm = 0.0;
    args.skip_nonfinite = false;
    args.scalars = {};
    return decision.report;
  }

  // On a GPU the caller's stream may overwrite the scalars before the batches read them.
  Status copy_scalars(StepState& now) {
    const StepScalars& given = now.args.scalars;
    if (given.lr == nullptr && given.loss_scale == nullptr && given.found_inf == nullptr &&
        given.norm == nullptr)
      return {};
    const auto copied = staging_.copy_scalars(given, now.args.stream);
    if (!copied.ok()) return copied.status();
    now.args.scalars = *copied;
    now.scalar_slot = staging_.scalar_slot();
    auto fence = queues_.record_fence(now.args.stream);
    if (fence.ok()) now.caller = *fence;
    return fence.status();
  }

  // Tables are at the end of the memory, for steps of every size.
  [[nodiscard]] std::span<std::byte> tables() const {
    const std::span<std::byte> memory = staging_.memory();
    const std::size_t end = memory.size() / Staging::kAlignment * Staging::kAlignment;
    return memory.first(end).last(static_cast<std::size_t>(tables_bytes_));
  }

  // Gives every batch a location after those of earlier steps, unless each has one that still fits.
  Status locate_batches(std::span<const StepGrad> grads) {
    const std::span<std::byte> memory = staging_.memory();
    const bool same = memory.data() == memory_.data() && memory.size() == memory_.size();
    bool fits = same;
    for (PlacedBatch& batch : batches_) {
      const bool before = same && batch.fits_grads;
      batch.fits_grads = before || std::ranges::any_of(batch.chunks, [&](auto& chunk) {
                           return grads[chunk.tensor].on_host;
                         });
      fits = fits && batch.fits_grads == before;
    }
    if (fits) return {};
    memory_ = {};
    const std::int64_t end = tables().data() - memory.data() - Staging::kHeadBytes;
    for (PlacedBatch& batch : batches_) {
      const std::int64_t bytes = Staging::aligned(bytes_of(batch));
      if (staging_.cursor + bytes > end) staging_.cursor = 0;
      batch.at = Staging::kHeadBytes + staging_.cursor;
      staging_.cursor += bytes;
    }
    if (Status bad = make_kernels(memory.data()); !bad.ok()) return bad;
    memory_ = memory;
    if (staging_.tables_of == number_) staging_.tables_of = 0;
    return {};
  }
  static std::int64_t bytes_of(const PlacedBatch& batch) {
    return batch.fits_grads ? batch.bytes : batch.states_bytes;
  }

  Status make_kernels(std::byte* memory) {
    std::int64_t tables = 0;
    for (PlacedBatch& batch : batches_) {
      std::vector<TensorArgs> chunks;
      for (const Chunk& chunk : batch.chunks)
        chunks.push_back(chunk_args(tensors_[chunk.tensor], chunk, memory + batch.at));
      const std::span<std::int64_t* const> counts(counts_);
      auto backend =
          config_.device.kind == DeviceKind::cpu
              ? make_cpu_step(config_, chunks)
              : make_cuda_step(config_, chunks, &batch == &batches_.back() ? counts : counts.first(0));
      if (!backend.ok()) return backend.status();
      batch.kernels = std::make_shared<BatchKernels>(std::move(*backend));
      batch.tables_at = tables;
      tables += Staging::aligned(batch.kernels->workspace_bytes());
    }
    tables_bytes_ = tables;
    return {};
  }

  // Enqueues one batch.
  Status enqueue(std::size_t i, const StepState& now, std::uint64_t number, BatchFences& fences) {
    const PlacedBatch& batch = batches_[i];
    std::byte* const base = staging_.memory().data() + batch.at;
    if (i == 0) {
      const Status bad = first_error({queues_.work().order_after(now.caller),
                                      staging_.claim_bytes(tables(), now.last, Staging::For::tables)});
      if (!bad.ok()) return bad;
    }
    if (Status bad = copy_up(batch, now, base, number); !bad.ok()) return bad;
    const auto up = queues_.up().record_fence();
    if (!up.ok()) return up.status();
    if (Status bad = first_error({queues_.work().order_after(*up), update(batch, now, base)}); !bad.ok())
      return bad;
    const auto work = queues_.work().record_fence();
    if (!work.ok()) return work.status();
    fences = {*up, *work};
    if (now.scalar_slot && number == now.last) staging_.hold_scalars_until(*now.scalar_slot, *work);
    if (Status bad = queues_.down().order_after(*work); !bad.ok()) return bad;
    for (const HostRange& range : batch.ranges) {
      if (Status bad = queues_.down().copy(range.host, base + range.at, range.bytes, "states down");
          !bad.ok())
        return bad;
    }
    const auto down = queues_.down().record_fence();
    if (down.ok()) staging_.end_batch(number, *down);
    return down.status();
  }

  Status copy_up(const PlacedBatch& batch, const StepState& now, std::byte* base, std::uint64_t number) {
    Queue& up = queues_.up();
    const auto claim = [&](std::byte* begin, std::int64_t bytes) {
      return staging_.claim_bytes({begin, static_cast<std::size_t>(bytes)}, number, Staging::For::copies);
    };
    Status bad = claim(base, bytes_of(batch));
    for (const HostRange& range : batch.ranges) {
      if (bad.ok()) bad = claim(range.host, range.bytes);
      if (bad.ok()) bad = up.copy(base + range.at, range.host, range.bytes, "states up");
    }
    for (const Chunk& chunk : batch.chunks) {
      const StepGrad& grad = now.grads[chunk.tensor];
      if (!grad.on_host || !bad.ok()) continue;
      if (chunk.first) bad = up.order_after(grad.complete);
      if (bad.ok()) {
        bad = up.copy(base + chunk.grad.at, static_cast<const std::byte*>(grad.data) + chunk.grad.from,
                      chunk.grad.bytes, "gradient up");
      }
    }
    return bad;
  }

  Status update(const PlacedBatch& batch, const StepState& now, std::byte* base) {
    std::vector<const void*> grads;
    for (const Chunk& chunk : batch.chunks) {
      const StepGrad& grad = now.grads[chunk.tensor];
      grads.push_back(grad.on_host ? base + chunk.grad.at
                                   : static_cast<const std::byte*>(grad.data) + chunk.grad.from);
    }
    StepArgs args = now.args;
    args.workspace = tables().subspan(static_cast<std::size_t>(batch.tables_at),
                                      static_cast<std::size_t>(batch.kernels->workspace_bytes()));
    // The last batch writes the report and advances the step counts. The others read a copy of the count.
    CopyRange count{};
    if (&batch != &batches_.back()) {
      args.scalars.report = nullptr;
      if (args.scalars.step != nullptr) {
        count = {staging_.count(), args.scalars.step, sizeof(std::int64_t)};
        args.scalars.step = staging_.count();
      }
    }
    return queues_.work().run(
        [&queues = queues_, kernels = batch.kernels, grads = std::move(grads), args, count,
         write_tables = now.write_tables](void* stream) mutable {
          if (count.to != nullptr) {
            if (Status bad = queues.copy(stream, {&count, 1}); !bad.ok()) return bad;
          }
          args.stream = stream;
          return kernels->step(grads, write_tables, args);
        },
        "step");
  }

  static std::uint64_t next_number() {
    static std::atomic<std::uint64_t> numbers{0};
    return ++numbers;
  }

  const GroupConfig config_;
  Staging& staging_;
  DeviceQueues& queues_;
  const std::vector<std::int64_t*> counts_;
  const std::uint64_t number_ = next_number();  // identifies its tables in Staging::tables_of
  std::vector<TensorArgs> tensors_;
  std::vector<PlacedBatch> batches_;
  std::span<std::byte> memory_;  // the batches' locations and kernels are for this memory
  std::int64_t states_bytes_ = 0, bytes_ = 0, tables_bytes_ = 0;
  std::uint64_t posted_ = 0;  // number of the last batch that was posted
};

}  // namespace

Result<std::unique_ptr<OffloadedStep>> make_streamed_step(const GroupConfig& config,
                                                          std::span<const StepTensor> tensors,
                                                          Staging& staging,
                                                          std::span<std::int64_t* const> counts,
                                                          StreamSizes sizes) {
  auto step = std::make_unique<StreamedStep>(config, tensors, staging, counts);
  if (Status bad = step->make(tensors, sizes); !bad.ok()) return bad;
  return std::unique_ptr<OffloadedStep>(std::move(step));
}

}  // namespace octavo::offload
