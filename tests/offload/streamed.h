// A TensorSet whose states pass through a device, beside one that is stepped whole: weights, gradients and
// staging memory are the device's, states are host memory.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/offloaded_step.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"
#include "tests/support/delays.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace test {

// The device, and host memory that it copies. What it allocates lives as long as the target.
class Target {
 public:
  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  virtual ~Target() = default;
  [[nodiscard]] virtual octavo::Device device() const = 0;
  [[nodiscard]] virtual std::unique_ptr<octavo::offload::DeviceQueues> queues() = 0;
  [[nodiscard]] virtual void* stream() = 0;  // the caller's
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual std::byte* allocate_host(std::int64_t bytes) = 0;
  // Now, whatever the streams do.
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
};

// Threads that stand for a device.
class ThreadTarget final : public Target {
 public:
  [[nodiscard]] octavo::Device device() const override { return {}; }
  [[nodiscard]] std::unique_ptr<octavo::offload::DeviceQueues> queues() override {
    return octavo::offload::make_cpu_queues();
  }
  [[nodiscard]] void* stream() override { return nullptr; }
  std::byte* allocate(std::int64_t bytes) override {
    return buffers_.emplace_back(std::make_unique<Buffer>(bytes))->data();
  }
  std::byte* allocate_host(std::int64_t bytes) override { return allocate(bytes); }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }

 private:
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

class Streamed {
 public:
  // Where states are: in buffers of their own; in one piece of host memory, side by side or with eight bytes
  // of somebody else between them. Held: as the first, and gradients are in host memory, too.
  enum class Kind { apart, slab, slab_with_gaps, held };

  Streamed(Target& target, const TensorSet& set, octavo::offload::StreamSizes sizes, Kind kind,
           std::span<std::int64_t* const> counts = {}, std::vector<std::uint32_t> order = {})
      : target_(target), set_(set), kind_(kind), sizes_(sizes), order_(std::move(order)) {
    order_.resize(size());
    fences_.resize(size());
    for (const TensorBuffers& t : set_.tensors()) {
      params_.push_back(twin(t.param));
      grads_.push_back(twin(t.grad));
      held_.emplace_back(t.grad.size());
    }
    if (kind == Kind::slab || kind == Kind::slab_with_gaps) lay_out();
    queues_ = target.queues();
    staging_.emplace(*queues_);
    step_ = make(all(), counts);
  }

  octavo::Result<octavo::StepReport> step(const octavo::StepArgs& args) {
    auto done = run(*step_, all(), args);
    if (!done.ok()) return done.status();
    fences_ = std::move(done->tensors);
    return done->report;
  }
  // By a backend of its own, which is gone when the call returns.
  octavo::Result<octavo::StepReport> step_some(const std::vector<std::size_t>& tensors,
                                               const octavo::StepArgs& args) {
    const auto made = make(tensors, {});
    const auto done = run(*made, tensors, args);
    if (!done.ok()) return done.status();
    return done->report;
  }

  // When the gradients were read.
  void fill_grads(std::uint64_t seed) {
    for (std::size_t i = 0; i < size(); ++i) EXPECT_TRUE(fences_[i].gradient.wait().ok());
    set_.fill_grads(seed);
    for (std::size_t i = 0; i < size(); ++i) {
      const Buffer& grad = set_.tensors()[i].grad;
      target_.copy(grads_[i], grad.data(), grad.size());
    }
  }
  void overwrite_gradient(std::size_t i) {
    EXPECT_TRUE(fences_[i].gradient.wait().ok());
    const Buffer& grad = set_.tensors()[i].grad;
    const std::vector<std::byte> wrong(static_cast<std::size_t>(grad.size()), std::byte{0x3F});
    target_.copy(kind_ == Kind::held ? held_[i].data() : grads_[i], wrong.data(), grad.size());
  }
  [[nodiscard]] bool weight_is_ready(std::size_t i) const {
    const auto& pending = fences_[i].weight;
    return pending.queued.passed() && (pending.fence == nullptr || pending.fence->passed());
  }
  octavo::Status wait_weight(std::size_t i) { return fences_[i].weight.wait(); }
  // Ordered: the caller's stream is, and the host does not wait.
  enum class When { promised, ordered };
  std::string weight_difference(std::size_t i, const TensorSet& other, When when = When::promised) {
    if (when == When::promised) {
      EXPECT_TRUE(wait_weight(i).ok());
    }
    const TensorBuffers& t = set_.tensors()[i];
    target_.copy(t.param.data(), params_[i], t.param.size());
    const auto element = static_cast<std::size_t>(octavo::dtype_bytes(t.spec.param_dtype));
    return first_difference(t.param.data(), other.tensors()[i].param.data(),
                            static_cast<std::size_t>(t.spec.numel), element);
  }
  void wait() {
    const auto idle = staging_->idle_fence();
    const octavo::Status status = idle.ok() ? idle->wait() : idle.status();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  std::string difference(const TensorSet& other) {
    wait();
    for (std::size_t i = 0; i < size(); ++i)
      target_.copy(set_.tensors()[i].param.data(), params_[i], set_.tensors()[i].param.size());
    for (const Place& place : places_) std::memcpy(place.own, slab_ + place.at, place.bytes);
    return set_.difference(other);
  }

  // Bytes of the slab that no state has.
  void write_gaps(std::byte value) {
    for (const Place& gap : gaps_) std::memset(slab_ + gap.at, static_cast<int>(value), gap.bytes);
  }
  [[nodiscard]] bool gaps_are(std::byte value) const {
    return !gaps_.empty() && std::ranges::all_of(gaps_, [&](const Place& gap) {
      return std::all_of(slab_ + gap.at, slab_ + gap.at + gap.bytes,
                         [&](std::byte byte) { return byte == value; });
    });
  }

  void hold_down() {
    (void)queues_->down().run(
        [gate = gate_.get_future().share()](void*) {
          gate.wait();
          return octavo::Status();
        },
        "gate");
  }
  void let_go() { gate_.set_value(); }
  void shrink_staging() { most_staging_ = 4096; }
  [[nodiscard]] octavo::offload::DeviceQueues& queues() { return *queues_; }
  [[nodiscard]] octavo::offload::OffloadedStep& whole() { return *step_; }
  [[nodiscard]] const octavo::offload::TensorFences& fences(std::size_t i) const { return fences_[i]; }
  [[nodiscard]] std::byte* device_grad(std::size_t i) { return grads_[i]; }

 private:
  struct Place {
    void* own;  // of the TensorSet
    std::int64_t at;
    std::size_t bytes;
  };

  [[nodiscard]] std::size_t size() const { return set_.tensors().size(); }
  [[nodiscard]] std::vector<std::size_t> all() const {
    std::vector<std::size_t> numbers(size());
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    return numbers;
  }
  // Memory of the device with the same bytes, as far from a multiple of 64.
  std::byte* twin(const Buffer& own) {
    const auto phase = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(own.data()) % 64);
    std::byte* const at = target_.allocate(own.size() + 64) + phase;
    target_.copy(at, own.data(), own.size());
    return at;
  }

  void lay_out() {
    std::int64_t at = 0;
    const auto add = [&](const Buffer& own, std::int64_t alignment) {
      const std::int64_t begin = (at + alignment - 1) / alignment * alignment;
      if (own.size() == 0) return;
      places_.push_back({own.data(), begin, static_cast<std::size_t>(own.size())});
      at = begin + own.size();
      if (kind_ == Kind::slab_with_gaps) {
        gaps_.push_back({nullptr, at, 8});
        at += 8;
      }
    };
    for (const TensorBuffers& t : set_.tensors()) {
      for (const Buffer& codes : t.codes) add(codes, 4);
      for (const Buffer& scales : t.scales) add(scales, 4);
      add(t.residual, 2);
    }
    slab_ = target_.allocate_host(at);
    for (const Place& place : places_) std::memcpy(slab_ + place.at, place.own, place.bytes);
  }
  void* moved(void* own) const {
    const auto at = std::ranges::find_if(places_, [&](const Place& place) { return place.own == own; });
    return at == places_.end() ? own : slab_ + at->at;
  }

  std::unique_ptr<octavo::offload::OffloadedStep> make(const std::vector<std::size_t>& tensors,
                                                       std::span<std::int64_t* const> counts) {
    std::vector<octavo::offload::StepTensor> given;
    for (const std::size_t i : tensors) {
      octavo::offload::StepTensor tensor;
      tensor.args = set_.tensors()[i].args();
      tensor.args.param = params_[i];
      tensor.args.grad = kind_ == Kind::held ? nullptr : grads_[i];
      tensor.args.residual = moved(tensor.args.residual);
      for (auto& slot : tensor.args.state) {
        slot.codes = moved(slot.codes);
        slot.scales = static_cast<float*>(moved(slot.scales));
      }
      tensor.order = order_[i];
      given.push_back(tensor);
    }
    octavo::GroupConfig config = set_.config();
    config.device = target_.device();
    auto made = octavo::offload::make_streamed_step(config, given, *staging_, counts, sizes_);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }

  octavo::Result<octavo::offload::StepResult> run(octavo::offload::OffloadedStep& step,
                                                  const std::vector<std::size_t>& tensors,
                                                  octavo::StepArgs args) {
    args.stream = target_.stream();
    const auto caller = queues_->record_fence(args.stream);
    if (!caller.ok()) return caller.status();
    const std::int64_t bytes = std::min(step.staging_bytes(kind_ == Kind::held), most_staging_);
    if (bytes > static_cast<std::int64_t>(memory_.size()) || most_staging_ == bytes) {
      wait();
      memory_ = {target_.allocate(bytes), static_cast<std::size_t>(bytes)};
    }
    std::vector<octavo::offload::StepGrad> grads;
    for (const std::size_t i : tensors) {
      grads.push_back({grads_[i]});
      if (kind_ != Kind::held) continue;
      // Late, by the host's queue.
      const Buffer& grad = set_.tensors()[i].grad;
      (void)queues_->host().copy(held_[i].data(), grad.data(), grad.size(), "gradient");
      grads.back() = {grad.size() == 0 ? nullptr : held_[i].data(), grad.size() != 0,
                      *queues_->host().record_fence()};
    }
    return step.step({args, grads, *caller, {}, memory_});
  }

  Target& target_;
  TensorSet set_;
  const Kind kind_;
  const octavo::offload::StreamSizes sizes_;
  std::vector<std::uint32_t> order_;
  std::vector<std::byte*> params_, grads_;
  std::vector<Place> places_, gaps_;
  std::byte* slab_ = nullptr;
  std::vector<Buffer> held_;
  std::int64_t most_staging_ = std::int64_t{1} << 40;
  std::span<std::byte> memory_;
  std::vector<octavo::offload::TensorFences> fences_{};
  std::promise<void> gate_;
  std::unique_ptr<octavo::offload::DeviceQueues> queues_;  // from here on: gone before the memory is
  std::optional<octavo::offload::Staging> staging_;
  std::unique_ptr<octavo::offload::OffloadedStep> step_;
};

// From nothing to several pieces; with two dimensions where the format looks at them.
inline std::vector<octavo::TensorSpec> streamed_specs(octavo::StateFormat format, const StoreCase& store,
                                                      octavo::DType grad) {
  std::vector<octavo::TensorSpec> list;
  for (const std::int64_t numel : {1, 9001, 0, 257, 20480, 4096}) {
    const std::int64_t block = has_blocks(format) && numel == 20480 ? 4096 : 0;
    list.push_back(tensor_spec(numel, store.dtype, grad, store.store, format, block));
    if (numel == 257 || numel == 4096) give_shape(list.back());
  }
  return list;
}

// Small enough that the largest of them are cut, and that batches wait for one another.
inline constexpr octavo::offload::StreamSizes kSmallSizes{40000, 100000};
inline constexpr octavo::offload::StreamSizes kTightSizes{40000, 30000};

// Three steps, of which none waits for the one before.
inline std::string streamed_difference(Target& target, const OptimizerCase& optimizer,
                                       const std::vector<octavo::TensorSpec>& list, Streamed::Kind kind,
                                       octavo::offload::StreamSizes sizes = kSmallSizes) {
  TensorSet expected(optimizer.config, list, 11);
  Streamed got(target, expected, sizes, kind);
  for (std::int64_t step = 1; step <= 3; ++step) {
    octavo::StepArgs args = step_args(optimizer, step);
    args.threads = 1;
    got.fill_grads(70 + static_cast<std::uint64_t>(step));
    expected.fill_grads(70 + static_cast<std::uint64_t>(step));
    auto report = expected.step(args);
    if (report.ok()) report = got.step(args);
    if (!report.ok()) return report.status().message();
  }
  return got.difference(expected);
}

// Steps of parts of the tensors, in other ways each time, that share memory and states. Of every other seed's
// format, steps on the CPU keep something in staging memory besides states.
inline std::string shared_difference(Target& target, Streamed::Kind kind, int seed) {
  const OptimizerCase adamw = optimizers(false)[1];
  const octavo::StateFormat format =
      seed % 2 == 0 ? octavo::StateFormat::int8 : octavo::StateFormat::int4_rank1;
  std::vector<octavo::TensorSpec> list = streamed_specs(format, stores()[0], octavo::DType::f32);
  for (octavo::TensorSpec& spec : list) give_shape(spec);
  TensorSet expected(adamw.config, list, 3);
  Streamed got(target, expected, kTightSizes, kind);
  for (std::int64_t step = 1; step <= 4; ++step) {
    const octavo::StepArgs args = step_args(adamw, step);
    auto report = expected.step(args);
    const std::vector<std::vector<std::size_t>> ways[] = {
        {{0, 1}, {2, 3, 4, 5}}, {{5, 4, 3}, {2, 1, 0}}, {{0}, {1}, {2}, {3}, {4}, {5}}};
    for (const auto& part : ways[static_cast<std::size_t>(step) % 3]) {
      if (report.ok()) report = got.step_some(part, args);
    }
    if (!report.ok()) return report.status().message();
  }
  return got.difference(expected);
}

}  // namespace test
