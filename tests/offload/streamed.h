// A TensorSet whose states pass through a device that is made of threads, beside one that is stepped whole.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/steps.h"
#include "support/buffers.h"
#include "support/cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <optional>
#include <string>
#include <vector>

namespace test {

class Streamed {
 public:
  // Where states are: in buffers of their own; in one piece of host memory, side by side or with eight bytes
  // of somebody else between them. Held: in buffers of their own, and gradients in host memory, too.
  enum class Kind { apart, slab, slab_with_gaps, held };

  Streamed(const TensorSet& set, octavo::offload::StreamSizes sizes, Kind kind,
           std::span<std::int64_t* const> counts = {}, std::vector<std::uint32_t> order = {})
      : set_(set), kind_(kind), sizes_(sizes), order_(std::move(order)) {
    if (kind == Kind::slab || kind == Kind::slab_with_gaps) lay_out();
    for (const TensorBuffers& t : set_.tensors()) held_.emplace_back(t.grad.size());
    link_ = octavo::offload::make_cpu_link();
    staging_.emplace(*link_);
    order_.resize(set_.tensors().size());
    std::vector<std::size_t> all(set_.tensors().size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    step_ = make(all, counts);
  }

  octavo::Result<octavo::StepReport> step(const octavo::StepArgs& args) {
    std::vector<std::size_t> all(set_.tensors().size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    return run(*step_, all, args);
  }
  // By a backend of its own, which is gone when the call returns.
  octavo::Result<octavo::StepReport> step_some(const std::vector<std::size_t>& tensors,
                                               const octavo::StepArgs& args) {
    const auto made = make(tensors, {});
    return run(*made, tensors, args);
  }

  // When the gradients were read.
  void fill_grads(std::uint64_t seed) {
    for (std::size_t i = 0; i < set_.tensors().size(); ++i) EXPECT_TRUE(wait_for(step_->gradient(i)).ok());
    set_.fill_grads(seed);
  }
  void overwrite_gradient(std::size_t i) {
    EXPECT_TRUE(wait_for(step_->gradient(i)).ok());
    const Buffer& grad = kind_ == Kind::held ? held_[i] : set_.tensors()[i].grad;
    std::memset(grad.data(), 0x3F, static_cast<std::size_t>(grad.size()));
  }
  [[nodiscard]] bool weight_is_ready(std::size_t i) const {
    const auto& promise = step_->weight(i);
    return promise.mark == nullptr || promise.mark->passed();
  }
  octavo::Status wait_weight(std::size_t i) { return wait_for(step_->weight(i)); }
  std::string weight_difference(std::size_t i, const TensorSet& other) {
    EXPECT_TRUE(wait_for(step_->weight(i)).ok());
    const Buffer& got = set_.tensors()[i].param;
    return first_difference(
        got.data(), other.tensors()[i].param.data(), static_cast<std::size_t>(set_.tensors()[i].spec.numel),
        static_cast<std::size_t>(octavo::dtype_bytes(set_.tensors()[i].spec.param_dtype)));
  }
  void wait() {
    const octavo::Status status = staging_->idle().wait();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  std::string difference(const TensorSet& other) {
    wait();
    for (const Place& place : places_) std::memcpy(place.own, slab_.data() + place.at, place.bytes);
    return set_.difference(other);
  }

  // Bytes of the slab that no state has.
  void write_gaps(std::byte value) {
    for (const Place& gap : gaps_) std::memset(slab_.data() + gap.at, static_cast<int>(value), gap.bytes);
  }
  [[nodiscard]] bool gaps_are(std::byte value) const {
    return !gaps_.empty() && std::ranges::all_of(gaps_, [&](const Place& gap) {
      return std::all_of(slab_.data() + gap.at, slab_.data() + gap.at + gap.bytes,
                         [&](std::byte byte) { return byte == value; });
    });
  }

  void hold_down() {
    (void)link_->down().run(
        [gate = gate_.get_future().share()](void*) {
          gate.wait();
          return octavo::Status();
        },
        "gate");
  }
  void let_go() { gate_.set_value(); }
  void shrink_staging() {
    memory_ = Buffer(4096);
    (void)staging_->place({memory_.data(), 4096}, {});
    shrunk_ = true;
  }

 private:
  struct Place {
    void* own;  // of the TensorSet
    std::int64_t at;
    std::size_t bytes;
  };

  static octavo::Status wait_for(const octavo::offload::Promise& promise) {
    if (octavo::Status bad = promise.queued.wait(); !bad.ok()) return bad;
    return promise.mark == nullptr ? octavo::Status() : promise.mark->wait();
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
    slab_ = Buffer(at);
    for (const Place& place : places_) std::memcpy(slab_.data() + place.at, place.own, place.bytes);
  }
  void* moved(void* own) const {
    const auto at = std::ranges::find_if(places_, [&](const Place& place) { return place.own == own; });
    return at == places_.end() ? own : slab_.data() + at->at;
  }

  std::unique_ptr<octavo::offload::OffloadedStep> make(const std::vector<std::size_t>& tensors,
                                                       std::span<std::int64_t* const> counts) {
    std::vector<octavo::offload::OffloadedTensor> given;
    for (const std::size_t i : tensors) {
      octavo::offload::OffloadedTensor tensor;
      tensor.args = set_.tensors()[i].args();
      tensor.args.residual = moved(tensor.args.residual);
      for (auto& slot : tensor.args.state) {
        slot.codes = moved(slot.codes);
        slot.scales = static_cast<float*>(moved(slot.scales));
      }
      tensor.order = order_[i];
      if (kind_ == Kind::held) tensor.args.grad = nullptr;
      given.push_back(tensor);
    }
    auto made = octavo::offload::make_streamed_step(set_.config(), given, *link_, counts, sizes_);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }

  octavo::Result<octavo::StepReport> run(octavo::offload::OffloadedStep& step,
                                         const std::vector<std::size_t>& tensors,
                                         const octavo::StepArgs& args) {
    if (step.staging_bytes() > memory_.size() && !shrunk_) {
      wait();
      memory_ = Buffer(step.staging_bytes());
    }
    std::vector<const void*> grads, held;
    std::vector<octavo::offload::Mark> complete;
    for (const std::size_t i : tensors) {
      const Buffer& grad = set_.tensors()[i].grad;
      grads.push_back(kind_ == Kind::held ? nullptr : grad.data());
      if (kind_ != Kind::held) continue;
      // Late, by the host's queue.
      std::byte* const to = held_[i].data();
      (void)link_->host().copy(to, grad.data(), grad.size(), "gradient");
      held.push_back(grad.size() == 0 ? nullptr : to);
      complete.push_back(*link_->host().mark());
    }
    if (octavo::Status bad = step.bind_grads(grads); !bad.ok()) return bad;
    if (!shrunk_) {
      const auto bytes = static_cast<std::size_t>(memory_.size());
      if (octavo::Status bad = staging_->place({memory_.data(), bytes}, {}); !bad.ok()) return bad;
    }
    step.prepare({&*staging_, {}, held, complete});
    return step.step(args);
  }

  TensorSet set_;
  const Kind kind_;
  const octavo::offload::StreamSizes sizes_;
  std::vector<std::uint32_t> order_;
  std::vector<Place> places_, gaps_;
  Buffer slab_, memory_;
  std::vector<Buffer> held_;
  bool shrunk_ = false;
  std::promise<void> gate_;
  std::unique_ptr<octavo::offload::Link> link_;  // from here on: gone before the memory is
  std::optional<octavo::offload::Staging> staging_;
  std::unique_ptr<octavo::offload::OffloadedStep> step_;
};

}  // namespace test
