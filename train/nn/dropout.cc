// SPDX-License-Identifier: MIT
#include "train/nn/dropout.h"

#include "train/nn/fake.h"

#include <c10/util/accumulate.h>
#include <octavo/torch/native.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

namespace octavo_train {
namespace {

namespace native = octavo::torch::native;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The arguments of a call, except the tensors.
struct DropoutCall : torch::CustomClassHolder {
  DropoutCall(double drop, const DropoutKey& key, std::uint32_t number, std::int64_t batch_dim,
              std::int64_t row_pitch)
      : probability(drop), seed(key.seed), step(key.step), layer(number), dim(batch_dim), pitch(row_pitch) {}
  double probability;
  std::uint64_t seed, step;
  std::uint32_t layer;
  std::int64_t dim, pitch;
};

// Returns false if the core has no code for the device or the type. Throws on any other failure. REQUIRES:
// contiguous tensors.
bool drop_native(const DropoutCall& mask, const Tensor& from, const Tensor& samples, const Tensor& to) {
  const int dtype = native::dtype_number(from.scalar_type());
  const torch::Device device = from.device();
  if (device.is_meta()) {
    record_kernel("dropout", {from, to});
    return true;
  }
  if (dtype < 0 || !(device.is_cpu() || device.is_cuda())) return false;
  const auto sizes = from.sizes();
  auto args = native::sized<octavo_dropout_args>();
  args.dtype = static_cast<std::uint32_t>(dtype);
  args.device_kind = native::device_kind(device);
  args.device_index = native::device_index(device);
  args.from = from.const_data_ptr();
  args.to = to.mutable_data_ptr();
  args.outer = c10::multiply_integers(sizes.begin(), sizes.begin() + mask.dim);
  args.batch = sizes[static_cast<std::size_t>(mask.dim)];
  args.inner = c10::multiply_integers(sizes.begin() + mask.dim + 1, sizes.end());
  args.samples = samples.const_data_ptr<std::int64_t>();
  args.probability = mask.probability;
  args.seed = mask.seed;
  args.step = mask.step;
  args.layer = mask.layer;
  args.row = mask.pitch == 0 ? 0 : sizes.back();
  args.pitch = mask.pitch;
  args.stream = native::handle_of(native::current_stream(device));
  const octavo_status status = octavo_dropout(&args);
  constexpr octavo_status kUnsupported = 2;
  if (status == kUnsupported && device.is_cuda()) return false;
  native::check(status, "");
  return true;
}

Tensor drop(const DropoutCall& mask, const Tensor& x, const Tensor& samples) {
  const Tensor from = x.contiguous();
  const Tensor to = torch::empty_like(from, torch::MemoryFormat::Contiguous);
  if (drop_native(mask, from, samples, to)) return to;
  // Each element's factor; zero if the element is dropped.
  const Tensor factors = torch::ones(x.sizes(), torch::kFloat32);
  TORCH_CHECK(drop_native(mask, factors, samples.cpu(), factors), "dropout: no code for float32 on the CPU");
  const Tensor there = factors.to(x.device());
  const auto wide = x.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  return torch::where(there != 0, from.to(wide) * there, 0.0).to(x.scalar_type());
}

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& samples,
                        const c10::intrusive_ptr<DropoutCall>& mask) {
    context->save_for_backward({samples});
    context->saved_data["mask"] = c10::IValue::make_capsule(mask);
    return drop(*mask, x, samples);
  }

  // The forward pass multiplies by constants; the backward pass multiplies the gradient by the same
  // constants.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto mask =
        c10::static_intrusive_pointer_cast<DropoutCall>(context->saved_data["mask"].toCapsule());
    return {apply(grads[0], context->get_saved_variables()[0], mask), Tensor(), Tensor()};
  }
};

}  // namespace

bool check_dropout(const Tensor& x, double probability, bool training, const DropoutKey& pass,
                   std::int64_t dim) {
  TORCH_CHECK(probability >= 0.0 && probability < 1.0, "dropout: the probability is ", probability,
              ", expected at least 0 and below 1");
  if (!training || probability == 0.0) return false;
  TORCH_CHECK(dim >= 0 && dim < x.dim(), "dropout: dim is ", dim, ", expected 0 to ", x.dim() - 1);
  const Tensor& samples = pass.samples;
  TORCH_CHECK(samples.defined(),
              "dropout: the pass has no sample numbers; give it those of the batch's rows");
  TORCH_CHECK(samples.dim() == 1 && samples.size(0) == x.size(dim) && samples.scalar_type() == torch::kInt64,
              "dropout: the sample numbers are ", samples.scalar_type(), " ", samples.sizes(),
              ", expected Long [", x.size(dim), "]: one for each sample of the batch");
  TORCH_CHECK(samples.device() == x.device(), "dropout: the sample numbers are on ", samples.device(),
              ", expected ", x.device(), ", where the activations are");
  return true;
}

Tensor dropout(const Tensor& x, double probability, bool training, const DropoutKey& pass,
               std::uint32_t layer, std::int64_t dim, std::int64_t pitch) {
  if (!check_dropout(x, probability, training, pass, dim)) return x;
  return DropoutFunction::apply(x, pass.samples.contiguous(),
                                c10::make_intrusive<DropoutCall>(probability, pass, layer, dim, pitch));
}

}  // namespace octavo_train
