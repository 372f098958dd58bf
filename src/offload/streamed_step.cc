// The step of tensors whose states pass through the device: batch by batch, states go up, the device's own
// kernels update them and the weights, and they go down again. Marks let a batch go up while the one before
// is updated and the one before that goes down. Batches are posted at once and queued a few ahead (Staging).
//
// A place in device memory is used again when the copies down of its last batch are over (Staging). Weights
// and gradients of the device are touched by the work queue alone, behind the caller's mark; states go up
// before that, since nobody but this step touches them. Kernels' tables are in staging memory, too, and
// written by the work queue, so their order is that of the work.
// SPDX-License-Identifier: MIT
#include "cpu/threads.h"
#include "formula/decide.h"
#include "offload/batches.h"
#include "offload/offloaded_step.h"
#include "optimizers/checks.h"
#include "optimizers/format_resolution.h"
#include "status/first_error.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>

namespace octavo::offload {
namespace {

// The kernels of a batch. Work that is under way keeps it; only the work queue calls `step`.
class Inner {
 public:
  explicit Inner(std::unique_ptr<StepBackend> backend) : backend_(std::move(backend)) {}

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

// Where a batch is in the staging memory, from its begin.
struct Placed {
  std::shared_ptr<Inner> inner;
  std::int64_t at = 0, tables_at = 0;
};

class StreamedStep final : public OffloadedStep {
 public:
  StreamedStep(const GroupConfig& config, std::span<const OffloadedTensor> tensors, Link& link,
               std::span<std::int64_t* const> counts)
      : config_(config), link_(link), counts_(counts.begin(), counts.end()), promises_(tensors.size()) {
    for (const OffloadedTensor& tensor : tensors) {
      tensors_.push_back(tensor.args);
      grads_.push_back(tensor.args.grad);
    }
  }

  // What it has posted uses it.
  ~StreamedStep() override {
    if (staging_ != nullptr) (void)staging_->flush(posted_);
  }

  Status bind(std::span<const OffloadedTensor> tensors, const StreamSizes& sizes) {
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return tensors[i].order; });
    auto gathered = gather(config_, tensors_, order, sizes.batch, link_);
    if (!gathered.ok()) return gathered.status();
    batches_ = std::move(*gathered);
    if (batches_.empty()) batches_.emplace_back();  // which advances step counts
    room_ = room(sizes, [](const Batch& batch) { return batch.states_bytes; });
    StreamSizes two = sizes;
    two.all = std::max(sizes.all, 2 * (sizes.batch + sizes.batch / 16));
    room_with_grads_ = room(two, [](const Batch& batch) { return batch.bytes; });
    // What tables need is known when they are there, at addresses that do not matter yet.
    placed_.resize(batches_.size());
    with_grads_.resize(batches_.size());
    return make_inner(reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20));
  }

  Status bind_grads(std::span<const void* const> grads) override {
    grads_.assign(grads.begin(), grads.end());
    return {};
  }
  [[nodiscard]] std::int64_t workspace_bytes() const override { return 0; }
  [[nodiscard]] std::int64_t staging_bytes() const override {
    return Staging::kHeadBytes + (holds_ ? room_with_grads_ : room_) + tables_bytes_;
  }
  void expect_held(bool any) override { holds_ = any; }
  void prepare(const Call& call) override {
    staging_ = call.staging;
    caller_ = call.caller;
    held_.assign(call.held.begin(), call.held.end());
    held_.resize(tensors_.size());
    complete_.assign(call.complete.begin(), call.complete.end());
    complete_.resize(tensors_.size());
    holds_ = holds_ || std::ranges::any_of(held_, [](const void* grad) { return grad != nullptr; });
  }
  [[nodiscard]] const Promise& weight(std::size_t tensor) const override { return promises_[tensor].weight; }
  [[nodiscard]] const Promise& gradient(std::size_t tensor) const override {
    return promises_[tensor].gradient;
  }

  Result<StepReport> step(const StepArgs& args) override {
    if (Status bad = check(args); !bad.ok()) return bad;
    // What is posted still uses what is changed here.
    if (Status bad = staging_->flush(posted_); !bad.ok()) return bad;
    std::ranges::fill(promises_, Promises{});
    auto now = std::make_shared<Now>(Now{args, caller_});
    StepReport report;
    if (config_.device.kind == DeviceKind::cpu) {
      report = decide(now->args);
      if (report.skipped) return report;
    } else {
      report.pending = args.guard || args.scalars.found_inf != nullptr;
      if (Status bad = keep_scalars(*now); !bad.ok()) return bad;
    }
    if (Status bad = find_places(); !bad.ok()) return bad;
    now->write_tables = std::exchange(staging_->tables_of, number_) != number_;
    now->grads = grads_, now->held = held_, now->complete = complete_;
    now->last = staging_->posted() + batches_.size();
    if (now->kept) staging_->kept_until_told(*now->kept, now->last);
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const auto marks = std::make_shared<BatchMarks>();
      const std::uint64_t batch = staging_->post(
          [this, i, now, marks](std::uint64_t number) { return queue(i, *now, number, *marks); });
      promise(batches_[i], batch, marks);
      posted_ = batch;
    }
    if (Status bad = staging_->pump(); !bad.ok()) return bad;
    return report;
  }

 private:
  struct Promises {
    Promise weight, gradient;
  };

  // For the largest batch, and for more where there are more.
  template <class Bytes>
  std::int64_t room(const StreamSizes& sizes, Bytes bytes) const {
    std::int64_t largest = 0, all = 0;
    for (const Batch& batch : batches_) {
      largest = std::max(largest, Staging::aligned(bytes(batch)));
      all += Staging::aligned(bytes(batch));
    }
    return std::max(largest, std::min(Staging::aligned(sizes.all), 2 * all));
  }
  // What the batches of one step share until they are queued.
  struct Now {
    StepArgs args;
    Mark caller;
    bool write_tables = false;
    std::optional<std::size_t> kept{};  // the place of its scalars
    std::uint64_t last = 0;             // its last batch
    std::vector<const void*> grads{}, held{};
    std::vector<Mark> complete{};
  };
  struct BatchMarks {
    Mark up, work;
  };

  Status check(const StepArgs& args) const {
    if (args.sums.add != nullptr) {
      return Status::unsupported(tag(config_) +
                                 " offload: tensors that are measured together with other ranks cannot be "
                                 "streamed; keep their states on the device");
    }
    if (args.guard && args.scalars.norm == nullptr) {
      return Status::invalid(tag(config_) + " scalars.norm: got null, expected the norm of the gradients, " +
                             "because guard is on and states are streamed");
    }
    const std::size_t given = staging_ == nullptr ? 0 : staging_->memory().size();
    if (static_cast<std::int64_t>(given) < staging_bytes()) {
      return Status::invalid(tag(config_) + " staging: got " + std::to_string(given) + " bytes, expected " +
                             std::to_string(staging_bytes()) + " (staging_bytes)");
    }
    return {};
  }

  // On the CPU everything is known now. What is left in `args` is numbers.
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
    args.max_norm = 0.0;
    args.guard = false;
    args.scalars = {};
    return decision.report;
  }

  // On a GPU the caller changes scalars, in its own order, while they are still to be read.
  Status keep_scalars(Now& now) {
    const StepScalars& given = now.args.scalars;
    if (given.lr == nullptr && given.loss_scale == nullptr && given.found_inf == nullptr &&
        given.norm == nullptr)
      return {};
    const auto kept = staging_->keep(given, now.args.stream);
    if (!kept.ok()) return kept.status();
    now.args.scalars = *kept;
    now.kept = staging_->kept();
    auto mark = link_.mark(now.args.stream);
    if (mark.ok()) now.caller = *mark;
    return mark.status();
  }

  [[nodiscard]] bool held(const Batch& batch) const {
    return std::ranges::any_of(batch.pieces,
                               [&](const Piece& piece) { return held_[piece.tensor] != nullptr; });
  }
  // At the memory's end, whatever steps of other sizes have there.
  [[nodiscard]] std::span<std::byte> tables() const {
    const std::span<std::byte> memory = staging_->memory();
    const std::size_t end = memory.size() / Staging::kAlignment * Staging::kAlignment;
    return memory.first(end).last(static_cast<std::size_t>(tables_bytes_));
  }

  // Gives every batch its place in the memory that there is, behind that of the steps before.
  Status find_places() {
    const std::span<std::byte> memory = staging_->memory();
    const bool same = memory.data() == memory_.data() && memory.size() == memory_.size();
    bool fits = same;
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const bool before = same && with_grads_[i];
      with_grads_[i] = before || held(batches_[i]);
      fits = fits && with_grads_[i] == before;
    }
    if (fits) return {};
    memory_ = {};
    const std::int64_t room = tables().data() - memory.data() - Staging::kHeadBytes;
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const std::int64_t bytes =
          Staging::aligned(with_grads_[i] ? batches_[i].bytes : batches_[i].states_bytes);
      if (staging_->cursor + bytes > room) staging_->cursor = 0;
      placed_[i].at = Staging::kHeadBytes + staging_->cursor;
      staging_->cursor += bytes;
    }
    if (Status bad = make_inner(memory.data()); !bad.ok()) return bad;
    memory_ = memory;
    if (staging_->tables_of == number_) staging_->tables_of = 0;
    return {};
  }

  Status make_inner(std::byte* memory) {
    std::int64_t tables = 0;
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      std::vector<TensorArgs> pieces;
      for (const Piece& piece : batches_[i].pieces)
        pieces.push_back(args_at(tensors_[piece.tensor], piece, memory + placed_[i].at));
      const bool last = i + 1 == batches_.size();
      auto backend = config_.device.kind == DeviceKind::cpu
                         ? make_cpu_step(config_, pieces)
                         : make_cuda_step(config_, pieces, Addresses::checked,
                                          last ? std::span<std::int64_t* const>(counts_)
                                               : std::span<std::int64_t* const>());
      if (!backend.ok()) return backend.status();
      placed_[i].inner = std::make_shared<Inner>(std::move(*backend));
      placed_[i].tables_at = tables;
      tables += Staging::aligned(placed_[i].inner->workspace_bytes());
    }
    tables_bytes_ = tables;
    return {};
  }

  // One batch on its way.
  Status queue(std::size_t i, const Now& now, std::uint64_t number, BatchMarks& marks) {
    if (i == 0) {
      const Status bad = first_error(
          {link_.work().after(now.caller), staging_->claim(tables(), now.last, Staging::For::tables)});
      if (!bad.ok()) return bad;
    }
    if (Status bad = go_up(i, now, number); !bad.ok()) return bad;
    const auto up = link_.up().mark();
    if (!up.ok()) return up.status();
    if (Status bad = first_error({link_.work().after(*up), update(i, now)}); !bad.ok()) return bad;
    const auto work = link_.work().mark();
    if (!work.ok()) return work.status();
    marks = {*up, *work};
    if (now.kept && number == now.last) staging_->kept_until(*now.kept, *work);
    if (Status bad = link_.down().after(*work); !bad.ok()) return bad;
    const std::byte* base = staging_->memory().data() + placed_[i].at;
    for (const Run& run : batches_[i].runs) {
      if (Status bad = link_.down().copy(run.host, base + run.at, run.bytes, "states down"); !bad.ok())
        return bad;
    }
    const auto down = link_.down().mark();
    if (down.ok()) staging_->end(number, *down);
    return down.status();
  }

  Status go_up(std::size_t i, const Now& now, std::uint64_t number) {
    const Batch& batch = batches_[i];
    Queue& up = link_.up();
    std::byte* const base = staging_->memory().data() + placed_[i].at;
    const auto bytes = static_cast<std::size_t>(with_grads_[i] ? batch.bytes : batch.states_bytes);
    Status bad = staging_->claim({base, bytes}, number, Staging::For::copies);
    for (const Run& run : batch.runs) {
      if (!bad.ok()) return bad;
      bad = staging_->claim({run.host, static_cast<std::size_t>(run.bytes)}, number, Staging::For::copies);
      if (bad.ok()) bad = up.copy(base + run.at, run.host, run.bytes, "states up");
    }
    for (const Piece& piece : batch.pieces) {
      const auto* grad = static_cast<const std::byte*>(now.held[piece.tensor]);
      if (grad == nullptr || !bad.ok()) continue;
      if (piece.first) bad = up.after(now.complete[piece.tensor]);
      if (bad.ok())
        bad = up.copy(base + piece.grad.at, grad + piece.grad.from, piece.grad.bytes, "gradient up");
    }
    return bad;
  }

  Status update(std::size_t i, const Now& now) {
    std::byte* const memory = staging_->memory().data();
    const Placed& placed = placed_[i];
    std::vector<const void*> grads;
    for (const Piece& piece : batches_[i].pieces) {
      const bool here = now.held[piece.tensor] == nullptr;
      grads.push_back(here ? static_cast<const std::byte*>(now.grads[piece.tensor]) + piece.grad.from
                           : memory + placed.at + piece.grad.at);
    }
    StepArgs one = now.args;
    one.workspace = tables().subspan(static_cast<std::size_t>(placed.tables_at),
                                     static_cast<std::size_t>(placed.inner->workspace_bytes()));
    // The last one tells, and counts for all. The others have a count of their own.
    Link::Words count{};
    if (i + 1 < batches_.size()) {
      one.scalars.report = nullptr;
      if (one.scalars.step != nullptr) {
        count = {staging_->count(), one.scalars.step, sizeof(std::int64_t)};
        one.scalars.step = staging_->count();
      }
    }
    return link_.work().run(
        [&link = link_, inner = placed.inner, grads = std::move(grads), one, count,
         write_tables = now.write_tables](void* stream) mutable {
          if (count.to != nullptr) {
            if (Status bad = link.copy(stream, {&count, 1}); !bad.ok()) return bad;
          }
          one.stream = stream;
          return inner->step(grads, write_tables, one);
        },
        "step");
  }

  void promise(const Batch& batch, std::uint64_t number, const std::shared_ptr<BatchMarks>& marks) {
    const Mark queued = staging_->queued(number);
    const std::shared_ptr<Mark> up(marks, &marks->up), work(marks, &marks->work);
    for (const Piece& piece : batch.pieces) {
      if (!piece.last) continue;
      promises_[piece.tensor].weight = {queued, work};
      promises_[piece.tensor].gradient = {queued, held_[piece.tensor] != nullptr ? up : work};
    }
  }

  static std::uint64_t fresh_number() {
    static std::atomic<std::uint64_t> numbers{0};
    return ++numbers;
  }

  const GroupConfig config_;
  Link& link_;
  const std::vector<std::int64_t*> counts_;
  const std::uint64_t number_ = fresh_number();  // by which its tables are known
  std::vector<TensorArgs> tensors_;
  std::vector<const void*> grads_, held_;
  std::vector<Mark> complete_;
  Mark caller_;
  Staging* staging_ = nullptr;
  std::vector<Batch> batches_;
  std::vector<Placed> placed_;    // of each batch
  std::vector<bool> with_grads_;  // likewise: its place has room for held gradients
  std::span<std::byte> memory_;   // for which the places are
  std::int64_t room_ = 0, room_with_grads_ = 0, tables_bytes_ = 0;
  bool holds_ = false;        // some gradients of the next step are in host memory
  std::uint64_t posted_ = 0;  // its last batch
  std::vector<Promises> promises_;
};

}  // namespace

Result<std::unique_ptr<OffloadedStep>> make_streamed_step(const GroupConfig& config,
                                                          std::span<const OffloadedTensor> tensors,
                                                          Link& link, std::span<std::int64_t* const> counts,
                                                          StreamSizes sizes) {
  auto step = std::make_unique<StreamedStep>(config, tensors, link, counts);
  if (Status bad = step->bind(tensors, sizes); !bad.ok()) return bad;
  return std::unique_ptr<OffloadedStep>(std::move(step));
}

}  // namespace octavo::offload
