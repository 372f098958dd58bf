// FP8 matmuls with their gradients. A graph saves the transposed codes of x, one byte per element; it saves x
// only if the weight's gradient is plain.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/autocast_type.h>
#include <octavo/torch/fp8_context.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace octavo::torch::fp8 {

// The data that the forward and the backward pass of one matmul share.
struct Call : ::torch::CustomClassHolder {
  Call(std::shared_ptr<Context> of, Site& with, const Layer& made, std::uint32_t in_fp8, bool for_x,
       bool for_w)
      : context(std::move(of)),
        site(&with),
        in_use(with.in_use),
        layer(made),
        passes(in_fp8),
        dx(for_x),
        dw(for_w) {}

  bool fp8(std::uint32_t pass) const { return (passes & bit(pass)) != 0; }

  std::shared_ptr<Context> context;
  Site* site;
  std::shared_ptr<const char> in_use;  // no other weight gets the site's states
  Layer layer;
  std::uint32_t passes;
  bool dx, dw;  // the gradients that will be needed
  std::vector<std::int64_t> x_sizes, y_sizes, w_sizes;
};

struct Multiply : ::torch::autograd::Function<Multiply> {
  using Tensors = ::torch::autograd::variable_list;
  using Graph = ::torch::autograd::AutogradContext;

  // x and w are in the sizes of the caller.
  static Tensor forward(Graph* graph, const Tensor& x, const Tensor& w,
                        const c10::intrusive_ptr<Call>& call) {
    const Layer& layer = call->layer;
    const Shape& shape = layer.shape();
    Context& context = *call->context;
    const Tensor dense = matrices(x, shape.inputs_of_x(), shape.tokens, shape.inputs);
    const std::uint32_t wgrad = call->dw ? bit(kWgrad) & call->passes : 0;
    Codes codes_of_x, codes_of_w;
    {
      const std::lock_guard<std::mutex> lock(context.mutex_);
      // The weight is also cast for the backward pass and for a recomputed forward pass.
      const std::uint32_t of_w = call->passes & (bit(kForward) | bit(kDgrad));
      if (of_w != 0) codes_of_w = context.sites_.codes(*call->site, layer, lying(w, shape), of_w);
      // Without gradients, the maximum of x does not belong to a step.
      const std::uint32_t of_x = (call->passes & bit(kForward)) | wgrad;
      const bool learns = call->dx || call->dw;
      if (of_x != 0) layer.cast(kX, dense, of_x, context.sites_.delayed(*call->site, learns), codes_of_x);
    }
    Tensor y;
    if (call->fp8(kForward)) {
      y = layer.result(kForward, call->y_sizes);
      run(*call, kForward, codes_of_x, codes_of_w, {}, y);
    } else {
      y = plain::forward(dense.to(shape.y), seen(w, shape).to(shape.y), shape);
    }
    graph->saved_data["call"] = c10::IValue::make_capsule(call);
    graph->save_for_backward({call->dw && wgrad == 0 ? x : Tensor(), codes_of_x.transposed,
                              call->dx && !call->fp8(kDgrad) ? w : Tensor(),
                              call->dx ? codes_of_w.transposed : Tensor()});
    return shown(y, shape.tokens, call->y_sizes);
  }

  static Tensors backward(Graph* graph, const Tensors& grads) {
    TORCH_CHECK(
        !::torch::GradMode::is_enabled(),
        "octavo::torch::fp8: a gradient was asked for with create_graph, expected without: matmuls in "
        "FP8 have no gradients of gradients; compute this loss outside of FP8");
    Tensors out(3);
    if (!grads[0].defined()) return out;
    const auto call = c10::static_intrusive_pointer_cast<Call>(graph->saved_data["call"].toCapsule());
    const Layer& layer = call->layer;
    const Shape& shape = layer.shape();
    Context& context = *call->context;
    const bool dx = call->dx && graph->needs_input_grad(0), dw = call->dw && graph->needs_input_grad(1);
    const Tensors saved = graph->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor &transposed_x = saved[1], &w = saved[2], &transposed_w = saved[3];
    const Tensor dy = matrices(grads[0], shape.outputs_of_y(), shape.tokens, shape.outputs);
    const std::uint32_t passes = call->passes & ((dx ? bit(kDgrad) : 0U) | (dw ? bit(kWgrad) : 0U));
    Codes codes;
    if (passes != 0) {
      const std::lock_guard<std::mutex> lock(context.mutex_);
      layer.cast(kDy, dy, passes, context.sites_.delayed(*call->site), codes);
    }
    if (dx) {
      Tensor to;
      if (call->fp8(kDgrad)) {
        to = layer.result(kDgrad, call->x_sizes);
        run(*call, kDgrad, {}, {{}, transposed_w}, codes, to);
        codes.by_rows.reset();
      } else {
        to = plain::dgrad(dy, seen(w, shape).to(shape.y), shape).to(shape.x);
      }
      out[0] = shown(to, shape.tokens, call->x_sizes);
    }
    if (dw) {
      Tensor to;
      if (call->fp8(kWgrad)) {
        to = layer.result(kWgrad);
        run(*call, kWgrad, {{}, transposed_x}, {}, codes, to);
      } else {
        const Tensor dense = matrices(x, shape.inputs_of_x(), shape.tokens, shape.inputs);
        to = plain::wgrad(dy, dense.to(shape.y), shape).to(shape.w);
      }
      out[1] = (shape.transposed_weight ? to : to.mT()).view(call->w_sizes);
    }
    return out;
  }

  // Returns the tensor dense, as [groups, rows, columns].
  static Tensor matrices(const Tensor& t, std::int64_t groups, std::int64_t rows, std::int64_t columns) {
    return t.contiguous().view({groups, rows, columns});
  }
  // Return w as [groups, inputs, outputs], and as it is in memory.
  static Tensor seen(const Tensor& w, const Shape& shape) { return shape.batched ? w : w.unsqueeze(0); }
  static Tensor lying(const Tensor& w, const Shape& shape) {
    return shape.transposed_weight ? seen(w, shape) : seen(w, shape).mT();
  }
  // Returns the rows without padding, in the sizes of the caller's tensor. The result is not a view for
  // autograd, because a view that a function returns cannot be changed in place.
  static Tensor shown(const Tensor& all, std::int64_t tokens, at::IntArrayRef sizes) {
    if (all.sizes() == sizes && !all.is_view()) return all;
    return all.narrow(1, 0, tokens).view(sizes).variable_data();
  }

 private:
  static void run(const Call& call, std::uint32_t pass, const Codes& x, const Codes& w, const Codes& dy,
                  const Tensor& to) {
    void* workspace = nullptr;
    {
      const std::lock_guard<std::mutex> lock(call.context->mutex_);
      workspace = call.context->workspace(call.layer);
    }
    call.layer.matmul(pass, x, w, dy, to, workspace);
  }
};

// Returns torch's matmul.
inline Tensor Context::plainly(const Tensor& x, const Tensor& w, const Shape& shape) {
  if (!shape.batched) return x.matmul(w);
  const Tensor all =
      (shape.shared.one_input ? x.unsqueeze(0).expand({w.size(0), x.size(0), x.size(1)}) : x).bmm(w);
  return shape.shared.one_output ? all.sum(0) : all;
}

inline Tensor Context::multiply(const Tensor& x, const Tensor& w, Shape shape) {
  const ::torch::Device device = w.device();
  TORCH_CHECK(x.device() == device, "octavo::torch::fp8: x is on ", x.device(), " and the weight on ", device,
              ", expected one device");
  const bool autocast = at::autocast::is_autocast_enabled(octavo::autocast_type(device.type()));
  TORCH_CHECK(autocast || x.scalar_type() == w.scalar_type(), "octavo::torch::fp8: x is ",
              c10::toString(x.scalar_type()), " and the weight ", c10::toString(w.scalar_type()),
              ", expected one dtype (or autocast)");
  shape.x = x.scalar_type(), shape.w = w.scalar_type();
  shape.y = autocast ? at::autocast::get_autocast_dtype(octavo::autocast_type(device.type())) : shape.x;
  shape.transposed_weight = w.is_contiguous();
  const Layer layer(shape, numbers_, device);
  std::uint32_t passes = 0;
  Site* site = nullptr;
  {
    const Lock lock(mutex_);
    if (x.numel() == 0 || w.numel() == 0 || !has_fp8(device)) return plainly(x, w, shape);
    std::string why = why_plain(shape, layer, w);
    if (why.empty() && (site = sites_.find(w)) == nullptr)
      why = "the weight is none of those that were added";
    if (!why.empty()) {
      std::ostringstream what;
      what << "a matmul with a weight " << w.sizes() << " stays plain: " << why;
      log_once(what.str());
      return plainly(x, w, shape);
    }
    const ::torch::NoGradGuard no_grad;
    passes = choose(layer, Multiply::matrices(x, shape.inputs_of_x(), shape.tokens, shape.inputs),
                    Multiply::lying(w, shape));
  }
  if (passes == 0) return plainly(x, w, shape);
  const bool learns = ::torch::GradMode::is_enabled();
  auto call = c10::make_intrusive<Call>(shared_from_this(), *site, layer, passes, learns && x.requires_grad(),
                                        learns && w.requires_grad());
  call->x_sizes = x.sizes().vec(), call->w_sizes = w.sizes().vec();
  call->y_sizes = shape.batched ? std::vector<std::int64_t>{shape.groups, shape.tokens} : x.sizes().vec();
  if (shape.shared.one_output) call->y_sizes.erase(call->y_sizes.begin());
  if (shape.batched)
    call->y_sizes.push_back(shape.outputs);
  else
    call->y_sizes.back() = shape.outputs;
  return Multiply::apply(x, w, call);
}

inline Tensor Context::matmul(const Tensor& x, const Tensor& w) {
  TORCH_CHECK(w.dim() == 2 && x.dim() >= 1 && x.size(-1) == w.size(0), "octavo::torch::fp8: matmul got x ",
              x.sizes(), " and a weight ", w.sizes(), ", expected [.., in] and [in, out]");
  Shape shape;
  shape.inputs = w.size(0), shape.outputs = w.size(1);
  shape.tokens = shape.inputs == 0 ? 0 : x.numel() / shape.inputs;
  return multiply(x, w, shape);
}

inline Tensor Context::matmul_batched(const Tensor& x, const Tensor& w, Shared shared) {
  const std::int64_t dims = shared.one_input ? 2 : 3;
  TORCH_CHECK(w.dim() == 3 && x.dim() == dims && (shared.one_input || x.size(0) == w.size(0)) &&
                  x.size(-1) == w.size(1),
              "octavo::torch::fp8: matmul_batched got x ", x.sizes(), " and a weight ", w.sizes(),
              ", expected ", shared.one_input ? "[tokens, in]" : "[groups, tokens, in]",
              " and [groups, in, out]");
  Shape shape;
  shape.batched = true, shape.shared = shared;
  shape.groups = w.size(0), shape.tokens = x.size(-2);
  shape.inputs = w.size(1), shape.outputs = w.size(2);
  return multiply(x, w, shape);
}

}  // namespace octavo::torch::fp8
