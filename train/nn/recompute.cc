// SPDX-License-Identifier: MIT
#include "train/nn/recompute.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/fake.h"
#include "train/nn/fused.h"
#include "train/nn/weight_matmul.h"

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

class SavedAutocastScope {
 public:
  explicit SavedAutocastScope(const std::vector<Autocast>& wanted, const std::vector<Tensor>& inputs) {
    for (const Tensor& input : inputs) before_.emplace_back(input.device().type());
    for (const Autocast& one : wanted) one.apply();
    at::autocast::increment_nesting();
  }
  ~SavedAutocastScope() {
    // Clears the cache, so that code outside the scope does not find weights that were cast inside it.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    for (const Autocast& one : before_) one.apply();
  }
  SavedAutocastScope(const SavedAutocastScope&) = delete;
  SavedAutocastScope& operator=(const SavedAutocastScope&) = delete;

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
      : run(std::move(segment)),
        random(inputs),
        buffers(state),
        precision(matmul_precision()),
        weights(uses) {
    for (const Tensor& input : inputs) autocast.emplace_back(input.device().type());
  }
  Segment run;
  RandomState random;
  BufferValues buffers;
  std::vector<Autocast> autocast;
  MatmulPrecision precision;  // saved because the backward pass's thread has no context
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
      const SavedAutocastScope scope(replay->autocast, inputs);
      const MatmulPrecisionScope precision(replay->precision);
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

struct Rows : torch::CustomClassHolder {
  Rows(RowSegment segment, std::size_t count, std::int64_t most)
      : run(std::move(segment)), inputs(count), at_once(most) {}

  // Calls part(first, rows, the segment's inputs) for each run of rows.
  template <class Part>
  void each(const variable_list& all, const Part& part) const {
    const std::int64_t count = all[0].size(0);
    for (std::int64_t first = 0; first < count; first += at_once) {
      const std::int64_t rows = std::min(at_once, count - first);
      variable_list some;
      for (std::size_t i = 0; i < inputs; ++i) some.push_back(all[i].narrow(0, first, rows));
      part(first, rows, some);
    }
  }

  RowSegment run;
  std::size_t inputs;  // number of inputs among the function's tensors; the others are parameters
  std::int64_t at_once;
};

variable_list parameters_of(const Rows& rows, const variable_list& all) {
  return {all.begin() + static_cast<std::ptrdiff_t>(rows.inputs), all.end()};
}

struct RowsFunction : torch::autograd::Function<RowsFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const c10::intrusive_ptr<Rows>& rows, at::TensorList list) {
    const variable_list all = list.vec();
    context->save_for_backward(all);
    context->saved_data["rows"] = c10::IValue::make_capsule(rows);
    const torch::NoGradGuard no_grad;
    const NoAutocast no_autocast;
    torch::Tensor out;
    rows->each(all, [&](std::int64_t first, std::int64_t count, const variable_list& inputs) {
      const torch::Tensor part = rows->run(inputs, parameters_of(*rows, all));
      if (count == all[0].size(0)) {
        out = part;
        return;
      }
      if (!out.defined()) {
        std::vector<std::int64_t> sizes = part.sizes().vec();
        sizes[0] = all[0].size(0);
        out = torch::empty(sizes, part.options());
      }
      out.narrow(0, first, count).copy_(part);
    });
    return out;
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& grads) {
    check_first_gradient("recompute_rows");
    const auto rows = c10::static_intrusive_pointer_cast<Rows>(context->saved_data["rows"].toCapsule());
    const variable_list all = context->get_saved_variables();
    variable_list parameters, wanted;
    for (const torch::Tensor& saved : parameters_of(*rows, all)) {
      parameters.push_back(saved.detach().requires_grad_(saved.requires_grad()));
      if (saved.requires_grad()) wanted.push_back(parameters.back());
    }
    variable_list sums(wanted.size());
    rows->each(all, [&](std::int64_t first, std::int64_t count, const variable_list& inputs) {
      torch::Tensor part;
      {
        const torch::AutoGradMode with_grad(true);
        const NoAutocast no_autocast;
        part = rows->run(inputs, parameters);
      }
      const variable_list found = torch::autograd::grad({part}, wanted, {grads[0].narrow(0, first, count)});
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (sums[i].defined())
          sums[i].add_(found[i]);
        else
          sums[i] = to_accumulation_type(found[i]);
      }
    });
    variable_list out(1 + all.size());  // no gradients for `rows`, which is not a tensor, and the inputs
    std::size_t next = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].requires_grad())
        out[1 + rows->inputs + i] = sums[next++].to(parameters[i].scalar_type());
    }
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

torch::Tensor recompute_rows(RowSegment segment, const std::vector<torch::Tensor>& inputs,
                             const std::vector<torch::Tensor>& parameters, std::int64_t rows_at_once) {
  TORCH_CHECK(rows_at_once >= 1, "recompute_rows: rows_at_once is ", rows_at_once, ", expected at least 1");
  TORCH_CHECK(!inputs.empty(), "recompute_rows: there are no inputs");
  for (const torch::Tensor& input : inputs) {
    TORCH_CHECK(input.dim() >= 1 && input.size(0) == inputs[0].size(0), "recompute_rows: an input is ",
                input.sizes(), ", expected ", inputs[0].size(0), " rows as the first one has");
    TORCH_CHECK(!input.requires_grad(), "recompute_rows: an input needs a gradient; take recompute()");
  }
  variable_list all = inputs;
  all.insert(all.end(), parameters.begin(), parameters.end());
  auto rows = c10::make_intrusive<Rows>(std::move(segment), inputs.size(), rows_at_once);
  return RowsFunction::apply(std::move(rows), at::TensorList(all));
}

}  // namespace octavo_train
