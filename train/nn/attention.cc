// Computes relative_attention() with torch's operations, or, where fused.h allows it, with torch's batched
// matmuls and the kernels of train/nn/cuda/attention.h. The kernels save for the backward pass the
// probabilities before dropout, and queries, keys, values and positions in the layout of the matmuls. The
// scores by distance, the only tensors with 2 T columns, exist only during a forward or backward pass.
// SPDX-License-Identifier: MIT
#include "train/nn/attention.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/cuda/attention.h"
#include "train/nn/fused.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <cmath>

namespace octavo_train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kAttention = "relative_attention";

// The arguments of a call, except the tensors that have gradients.
struct AttentionCall : KernelMask {
  AttentionCall(const at::Tensor& q, const at::Tensor& ends, const Drop& drop)
      : KernelMask(q, drop),
        shape{is_bf16(q), q.size(0), q.size(1), q.size(2), q.size(3)},
        lengths(ends.contiguous()) {}
  [[nodiscard]] cuda::ProbabilityWork work() const {
    return {lengths.const_data_ptr<std::int64_t>(), call, 1.0 / std::sqrt(static_cast<double>(shape.size))};
  }

  cuda::AttentionShape shape;
  at::Tensor lengths;
};
using Call = c10::intrusive_ptr<AttentionCall>;

// Returns the number of elements between consecutive frames of x [batch, T, heads, size]. The kernel supports
// any distance that is the same for all frames. If T is 1, the stride of the frames is meaningless, even in a
// contiguous tensor, and the stride of the clips is used.
std::int64_t row_pitch(const at::Tensor& x) { return x.size(1) == 1 ? x.stride(0) : x.stride(1); }
bool has_even_rows(const at::Tensor& x) {
  return x.stride(3) == 1 && x.stride(2) == x.size(3) && x.stride(0) == x.size(1) * row_pitch(x) &&
         row_pitch(x) % 8 == 0 && reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
}
at::Tensor with_even_rows(const at::Tensor& x) { return has_even_rows(x) ? x : kernel_input(x); }

// The inputs of the matmuls, in the order of cuda::Heads.
struct HeadTensors {
  at::Tensor content, place, keys, values, positions;

  HeadTensors(const cuda::AttentionShape& s, const at::TensorOptions& options)
      : content(at::empty({s.batch * s.heads, s.frames, s.size}, options)),
        place(at::empty({s.heads, s.batch * s.frames, s.size}, options)),
        keys(at::empty({s.batch * s.heads, s.keys(), s.size}, options)),
        values(at::empty_like(keys)),
        positions(at::empty({s.heads, s.distances(), s.size}, options)) {}
  [[nodiscard]] cuda::Heads pointers() const {
    return {content.data_ptr(), place.data_ptr(), keys.data_ptr(), values.data_ptr(), positions.data_ptr()};
  }
};

HeadTensors split_heads(const cuda::AttentionShape& shape, const variable_list& inputs,
                        const KernelScope& scope) {
  const at::Tensor q = with_even_rows(inputs[0]), k = with_even_rows(inputs[1]),
                   v = with_even_rows(inputs[2]);
  const at::Tensor positions = kernel_input(inputs[3].to(q.scalar_type()));
  const at::Tensor bias_u = kernel_parameter(inputs[4]), bias_v = kernel_parameter(inputs[5]);
  HeadTensors out(shape, q.options());
  scope.run(kAttention, {q, k, v, positions, out.content, out.place, out.keys, out.values, out.positions},
            [&](auto stream) {
              return cuda::split_heads(
                  shape,
                  {q.const_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), row_pitch(q), row_pitch(k),
                   row_pitch(v), positions.const_data_ptr(), bias_u.const_data_ptr<float>(),
                   bias_v.const_data_ptr<float>(), out.pointers()},
                  stream);
            });
  return out;
}

struct Probabilities {
  at::Tensor kept, dropped;  // the same tensor if nothing is dropped
};
Probabilities attend(const AttentionCall& call, const HeadTensors& heads, const KernelScope& scope) {
  at::Tensor scores = at::bmm(heads.content, heads.keys.mT());
  const at::Tensor places = at::bmm(heads.place, heads.positions.mT());
  at::Tensor dropped = call.drops() ? at::empty_like(scores) : at::Tensor();
  scope.run(kAttention, {scores, scores, places, dropped}, [&](auto stream) {
    return cuda::probabilities(call.shape, call.work(), scores.data_ptr(), places.const_data_ptr(),
                               call.drops() ? dropped.data_ptr() : nullptr, stream);
  });
  return {scores, call.drops() ? dropped : scores};
}

// Returns the gradients of q, k, v, the positions and the biases, from the gradient of the output's heads.
variable_list attention_gradients(const AttentionCall& call, const at::Tensor& dout, const at::Tensor& kept,
                                  const variable_list& heads, const KernelScope& scope) {
  const cuda::AttentionShape& s = call.shape;
  const at::Tensor &content = heads[0], &place = heads[1], &keys = heads[2], &values = heads[3],
                   &positions = heads[4];
  at::Tensor dscores = at::bmm(dout, values.mT());
  at::Tensor dplaces = at::empty({s.heads, s.batch * s.frames, s.distances()}, dout.options());
  at::Tensor dropped = call.drops() ? at::empty_like(kept) : at::Tensor();
  scope.run(kAttention, {kept, dscores, dscores, dplaces, dropped}, [&](auto stream) {
    return cuda::probabilities_backward(call.shape, call.work(), kept.const_data_ptr(), dscores.data_ptr(),
                                        dplaces.data_ptr(), call.drops() ? dropped.data_ptr() : nullptr,
                                        stream);
  });
  const at::Tensor dvalues = at::bmm((call.drops() ? dropped : kept).mT(), dout);
  dropped.reset();
  const at::Tensor dkeys = at::bmm(dscores.mT(), content), dcontent = at::bmm(dscores, keys);
  dscores.reset();
  const at::Tensor dplace = at::bmm(dplaces, positions), dpositions = at::bmm(dplaces.mT(), place);
  dplaces.reset();
  const std::vector<std::int64_t> sizes{s.batch, s.frames, s.heads, s.size};
  at::Tensor dq = at::empty(sizes, dout.options()), dk = at::empty_like(dq), dv = at::empty_like(dq);
  const auto floats = dout.options().dtype(at::kFloat);
  at::Tensor dbias = at::empty({2, s.heads, s.size}, floats);
  const at::Tensor partial = at::empty({cuda::merge_partial_size(s)}, floats);
  scope.run(kAttention, {dcontent, dplace, dkeys, dvalues, dq, dk, dv}, [&](auto stream) {
    return cuda::merge_heads(
        s,
        {dcontent.const_data_ptr(), dplace.const_data_ptr(), dkeys.const_data_ptr(), dvalues.const_data_ptr(),
         dq.data_ptr(), dk.data_ptr(), dv.data_ptr(), dbias.data_ptr<float>(), partial.data_ptr<float>()},
        stream);
  });
  return {dq,       dk,      dv, dpositions.slice(1, 0, 2 * s.frames - 1).transpose(0, 1).contiguous(),
          dbias[0], dbias[1]};
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& positions, const at::Tensor& bias_u,
                            const at::Tensor& bias_v, const Call& call) {
    const NoAutocast no_autocast;
    const KernelScope scope(q);
    const HeadTensors heads = split_heads(call->shape, {q, k, v, positions, bias_u, bias_v}, scope);
    const Probabilities probabilities = attend(*call, heads, scope);
    const at::Tensor apart = at::bmm(probabilities.dropped, heads.values);
    at::Tensor out = at::empty({q.size(0), q.size(1), call->shape.channels()}, q.options());
    scope.run(kAttention, {apart, out}, [&](auto stream) {
      return cuda::heads_last(call->shape, apart.const_data_ptr(), out.data_ptr(), stream);
    });
    context->save_for_backward(
        {heads.content, heads.place, heads.keys, heads.values, heads.positions, probabilities.kept});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->saved_data["positions"] = positions.scalar_type();
    context->saved_data["bias"] = bias_u.scalar_type();
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_gradient(kAttention);
    const NoAutocast no_autocast;
    const auto call =
        c10::static_intrusive_pointer_cast<AttentionCall>(context->saved_data["call"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    const KernelScope scope(saved[0]);
    const at::Tensor together = kernel_input(grads[0].to(saved[0].scalar_type()));
    at::Tensor dout = at::empty_like(saved[0]);
    scope.run(kAttention, {together, dout}, [&](auto stream) {
      return cuda::heads_first(call->shape, together.const_data_ptr(), dout.data_ptr(), stream);
    });
    variable_list out = attention_gradients(*call, dout, saved[5], saved, scope);
    out[3] = out[3].to(context->saved_data["positions"].toScalarType());
    const at::ScalarType bias = context->saved_data["bias"].toScalarType();
    out[4] = out[4].to(bias);
    out[5] = out[5].to(bias);
    out.emplace_back();  // no gradient for `call`, which is not a tensor
    return out;
  }
};

bool attention_is_fusible(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return fusible(q) && k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type() &&
         q.size(1) <= cuda::kMostFrames && q.size(0) * q.size(2) < 65536;
}

// The value of masked scores. Its exponential is zero in any row that has an unmasked score.
constexpr double kMasked = -1e30;

// Returns scores by distance [.., T, 2 T - 1] as scores by key [.., T, T], a view. Its row i begins at column
// T - 1 - i.
torch::Tensor by_key(const torch::Tensor& scores) {
  const std::int64_t length = scores.size(-2), row = scores.size(-1);
  const torch::Tensor dense = scores.contiguous();
  return dense.as_strided({dense.size(0), dense.size(1), length, length},
                          {dense.size(1) * length * row, length * row, row - 1, 1},
                          dense.storage_offset() + length - 1);
}

// Returns `pass` with one sample number for each head of each row.
DropoutKey for_heads(const DropoutKey& pass, std::int64_t heads) {
  const torch::Tensor head = torch::arange(heads, pass.samples.options());
  return {pass.seed, pass.step, (pass.samples.unsqueeze(1) * heads + head).reshape({-1})};
}

torch::Tensor dropped(const torch::Tensor& probabilities, const Drop& drop) {
  if (!drop.training || drop.probability == 0.0) return probabilities;
  const DropoutKey pass = for_heads(drop.pass, probabilities.size(1));
  return dropout(probabilities.flatten(0, 1), drop.probability, true, pass, drop.layer, 0, cuda::kKeyPitch)
      .view_as(probabilities);
}

}  // namespace

torch::Tensor relative_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                 const torch::Tensor& positions, const torch::Tensor& bias_u,
                                 const torch::Tensor& bias_v, const torch::Tensor& lengths,
                                 const Drop& drop) {
  TORCH_CHECK(q.dim() == 4 && k.sizes() == q.sizes() && v.sizes() == q.sizes(),
              "relative_attention: queries, keys and values are ", q.sizes(), ", ", k.sizes(), " and ",
              v.sizes(), ", expected [batch, T, heads, size] three times");
  const std::int64_t length = q.size(1);
  TORCH_CHECK(positions.dim() == 3 && positions.size(0) == 2 * length - 1,
              "relative_attention: positions are ", positions.sizes(), ", expected [", 2 * length - 1,
              ", heads, size]");
  check_lengths(kAttention, lengths, q);
  if (attention_is_fusible(q, k, v))
    return AttentionFunction::apply(q, k, v, positions, bias_u, bias_v,
                                    c10::make_intrusive<AttentionCall>(q, lengths, drop));
  const NoAutocast no_autocast;
  const auto type = accumulation_type(q);
  const auto heads_first = [&](const torch::Tensor& x) { return x.to(type).transpose(1, 2); };
  const torch::Tensor query = heads_first(q);
  const torch::Tensor content = (query + bias_u.to(type).unsqueeze(1)).matmul(heads_first(k).mT());
  const torch::Tensor place =
      (query + bias_v.to(type).unsqueeze(1)).matmul(positions.to(type).permute({1, 2, 0}));
  const torch::Tensor scores = (content + by_key(place)) / std::sqrt(static_cast<double>(q.size(3)));
  const torch::Tensor real = length_mask(lengths, length);
  const torch::Tensor seen = (real.unsqueeze(2) & real.unsqueeze(1)).unsqueeze(1);  // [batch, 1, query, key]
  const torch::Tensor probabilities = scores.masked_fill(~seen, kMasked).softmax(-1).masked_fill(~seen, 0.0);
  return dropped(probabilities, drop).matmul(heads_first(v)).transpose(1, 2).flatten(2).to(q.scalar_type());
}

}  // namespace octavo_train
