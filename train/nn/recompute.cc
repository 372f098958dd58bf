// SPDX-License-Identifier: MIT
#include "train/nn/recompute.h"

#include "train/nn/fake.h"
#include "train/nn/matmul_precision.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace octavo_train {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The state of the generators that a segment may draw from.
class RandomState {
 public:
  explicit RandomState(const std::vector<Tensor>& inputs) {
    add(at::Device(at::kCPU));
    for (const Tensor& input : inputs) {
      const bool known = std::any_of(states_.begin(), states_.end(),
                                     [&](const auto& state) { return state.first == input.device(); });
      if (!known) add(input.device());
    }
  }

  void restore() const {
    for (const auto& [device, state] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  void add(at::Device device) {
    if (device.is_meta()) return;  // fake tensors draw no random numbers
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(device, generator.get_state());
  }

  std::vector<std::pair<at::Device, Tensor>> states_;
};

// The autocast settings at the object's creation. apply() sets them in the current thread, which in the
// backward pass may be another thread.
class Autocast {
 public:
  explicit Autocast(at::DeviceType device)
      : device_(octavo::autocast_type(device)),
        enabled_(at::autocast::is_autocast_enabled(device_)),
        dtype_(at::autocast::get_autocast_dtype(device_)) {}

  void apply() const {
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
  }

 private:
  at::DeviceType device_;
  bool enabled_;
  at::ScalarType dtype_;
};

class AutocastScope {
 public:
  explicit AutocastScope(const std::vector<Autocast>& wanted, const std::vector<Tensor>& inputs) {
    for (const Tensor& input : inputs) before_.emplace_back(input.device().type());
    for (const Autocast& one : wanted) one.apply();
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    // Clears the cache, so that code outside the scope does not find weights that were cast inside it.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    for (const Autocast& one : before_) one.apply();
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  std::vector<Autocast> before_;
};

// The buffers of a segment, and copies of their values. restore() writes the buffers through aliases without
// a version counter: an autograd graph may have saved a buffer (a BatchNorm's graph does), and the buffer
// holds the saved values again whenever the graph is used.
class BufferValues {
 public:
  explicit BufferValues(const std::vector<Tensor>& buffers) {
    const torch::NoGradGuard no_grad;
    for (const Tensor& buffer : buffers) {
      if (!buffer.defined()) continue;  // a BatchNorm without statistics registers undefined buffers
      buffers_.push_back(buffer.variable_data());
      values_.push_back(buffers_.back().clone());
    }
  }

  void restore() const {
    const torch::NoGradGuard no_grad;
    if (!buffers_.empty()) at::_foreach_copy_(buffers_, values_);
  }
  [[nodiscard]] const std::vector<Tensor>& buffers() const { return buffers_; }

 private:
  std::vector<Tensor> buffers_, values_;
};

// Sets a segment's buffers to their values before its first run, for the lifetime of the object.
class BufferScope {
 public:
  explicit BufferScope(const BufferValues& wanted) : before_(wanted.buffers()) { wanted.restore(); }
  ~BufferScope() { before_.restore(); }
  BufferScope(const BufferScope&) = delete;
  BufferScope& operator=(const BufferScope&) = delete;

 private:
  BufferValues before_;
};

// The number of running backward passes of segments with shared parameters, over all threads, because a
// nested backward pass may run in another thread.
std::atomic<int> shared_passes{0};

class SharedScope {
 public:
  explicit SharedScope(SegmentWeights weights) : shared_(weights == SegmentWeights::shared) {
    if (shared_) ++shared_passes;
  }
  ~SharedScope() {
    if (shared_) --shared_passes;
  }
  SharedScope(const SharedScope&) = delete;
  SharedScope& operator=(const SharedScope&) = delete;

 private:
  bool shared_;
};

// The state that a backward pass needs to run a segment again.
struct Replay : torch::CustomClassHolder {
  Replay(Segment segment, const std::vector<Tensor>& inputs, const std::vector<Tensor>& state,
         SegmentWeights uses)
      : run(std::move(segment)), random(inputs), buffers(state), products(product_context()), weights(uses) {
    for (const Tensor& input : inputs) autocast.emplace_back(input.device().type());
  }
  Segment run;
  RandomState random;
  BufferValues buffers;
  std::vector<Autocast> autocast;
  MatmulPrecision products;  // saved because the backward pass's thread has no context
  SegmentWeights weights;
};

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Replay>& replay,
                        at::TensorList list) {
    const variable_list inputs = list.vec();
    context->save_for_backward(inputs);
    context->saved_data["replay"] = c10::IValue::make_capsule(replay);
    const torch::NoGradGuard no_grad;
    return replay->run(inputs);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto replay = c10::static_intrusive_pointer_cast<Replay>(context->saved_data["replay"].toCapsule());
    variable_list inputs;
    for (const Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    const BufferScope buffers(replay->buffers);  // until the gradients are computed, which may depend on them
    Tensor output;
    {
      const torch::AutoGradMode with_grad(true);
      const RandomState now(inputs);
      replay->random.restore();
      const AutocastScope scope(replay->autocast, inputs);
      const MatmulPrecisionScope products(replay->products);
      output = replay->run(inputs);
      now.restore();
    }
    {
      const SharedScope shared(replay->weights);
      torch::autograd::backward({output}, {grads[0]});
    }
    variable_list out{Tensor()};  // no gradient for `replay`, which is not a tensor
    for (const Tensor& input : inputs) out.push_back(input.requires_grad() ? input.grad() : Tensor());
    return out;
  }
};

}  // namespace

bool gradients_come_again() { return shared_passes.load() > 0; }

Tensor recompute(Segment segment, std::vector<Tensor> inputs, std::vector<Tensor> buffers,
                 SegmentWeights weights) {
  const bool needed =
      torch::GradMode::is_enabled() &&
      std::any_of(inputs.begin(), inputs.end(), [](const Tensor& input) { return input.requires_grad(); });
  if (!needed) return segment(inputs);
  auto replay = c10::make_intrusive<Replay>(std::move(segment), inputs, buffers, weights);
  return RecomputeFunction::apply(std::move(replay), at::TensorList(inputs));
}

}  // namespace octavo_train
