// SPDX-License-Identifier: MIT
#include "train/nn/transducer.h"

#include "train/nn/fake.h"
#include "train/nn/fused.h"

#include <ATen/Parallel.h>
#include <octavo/backend.h>
#include <octavo/torch/native.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <array>
#include <optional>

namespace octavo_train {
namespace {

namespace native = octavo::torch::native;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The arguments of a call, except the tensors.
struct JointCall : torch::CustomClassHolder {
  TransducerOptions options;
  std::vector<std::int64_t> frames, labels;  // lengths of each clip
  double dropout = 0.0;
  std::uint64_t seed = 0, step = 0;
  std::uint32_t layer = 0;
};

// The input tensors of a call, in the types and layout of the core.
struct Inputs {
  Inputs(const Tensor& encoder, const Tensor& predictor, const Tensor& weights, const Tensor& biases,
         const Tensor& labels, const Tensor& numbers)
      : f(encoder.contiguous()),
        g(predictor.to(f.scalar_type()).contiguous()),
        weight(weights.to(f.scalar_type()).contiguous()),
        bias(biases.defined() ? biases.to(torch::kFloat32).contiguous() : biases),
        targets(labels.contiguous()),
        samples(numbers) {}
  Tensor f, g, weight, bias, targets, samples;
};

struct Arguments {
  Arguments(const JointCall& call, const Inputs& in)
      : args(native::sized<octavo_transducer_args>()), joint(native::sized<octavo_transducer_joint>()) {
    const torch::Device device = in.f.device();
    args.dtype = static_cast<std::uint32_t>(native::dtype_number(in.f.scalar_type()));
    args.device_kind = native::device_kind(is_fake_cpu(in.f) ? torch::Device(torch::kCPU) : device);
    args.device_index = native::device_index(device);
    const auto& durations = call.options.durations;
    args.kind = durations.empty() ? 1 : 0;
    args.reduction = native::parse("reduction", call.options.reduction);
    args.batch = in.f.size(0);
    args.frames = in.f.size(1);
    args.positions = in.g.size(1);
    args.tokens = in.weight.size(0) - static_cast<std::int64_t>(durations.size());
    args.blank = call.options.blank;
    args.durations = durations.data();
    args.duration_count = static_cast<std::int64_t>(durations.size());
    args.targets = in.targets.const_data_ptr<std::int64_t>();
    args.target_stride = in.targets.size(1);
    args.logit_lengths = call.frames.data();
    args.target_lengths = call.labels.data();
    args.sigma = call.options.sigma;
    args.omega = call.options.omega;
    args.seed = call.seed;
    args.step = call.step;
    args.stream = native::handle_of(native::current_stream(device));
    args.threads = at::get_num_threads();
    joint.hidden = in.f.size(2);
    joint.encoder = in.f.const_data_ptr();
    joint.predictor = in.g.const_data_ptr();
    joint.weight = in.weight.const_data_ptr();
    joint.bias = in.bias.defined() ? in.bias.const_data_ptr() : nullptr;
    joint.dropout = call.dropout;
    joint.samples = in.samples.defined() ? in.samples.const_data_ptr<std::int64_t>() : nullptr;
    joint.layer = call.layer;
    joint.tile_cells = call.options.tile_cells;
  }

  struct Bytes {
    std::int64_t workspace, scratch;
  };
  [[nodiscard]] octavo_status bytes(Bytes& out) const {
    return octavo_transducer_joint_bytes(&args, &joint, &out.workspace, &out.scratch);
  }
  [[nodiscard]] Bytes bytes() const {
    Bytes out{};
    native::check(bytes(out), "");
    return out;
  }
  void use(const Tensor& workspace, const Tensor& scratch) {
    args.workspace = workspace.mutable_data_ptr();
    args.workspace_bytes = workspace.numel();
    joint.scratch = scratch.mutable_data_ptr();
    joint.scratch_bytes = scratch.numel();
  }

  octavo_transducer_args args;
  octavo_transducer_joint joint;
};

std::int64_t cells_of(const JointCall& call) {
  std::int64_t cells = 0;
  for (std::size_t i = 0; i < call.frames.size(); ++i) cells += call.frames[i] * (call.labels[i] + 1);
  return cells;
}

// Records a call's work for a prediction: the matmuls, and the bytes of logits and hidden units that are read
// and written. The walk over the lattice, one sequential step per frame and label, is not recorded.
void record_tiles(const Inputs& in, const JointCall& call, bool gradient) {
  constexpr std::int64_t kTileCells = 8192;  // about the tile of a GPU, which pads rows to full vectors
  const std::int64_t vector = 16 / static_cast<std::int64_t>(in.f.element_size());
  const std::int64_t cells = cells_of(call), hidden = in.f.size(2);
  const std::int64_t outputs = (in.weight.size(0) + vector - 1) / vector * vector;
  const std::int64_t tiles = (cells + kTileCells - 1) / kTileCells, rows = std::min(cells, kTileCells);
  const auto type = in.f.scalar_type();
  const auto bytes = static_cast<double>(cells) * static_cast<double>(in.f.element_size());
  const double logits = bytes * static_cast<double>(outputs), units = bytes * static_cast<double>(hidden);
  const auto product = [&](std::int64_t height, std::int64_t width, std::int64_t inner) {
    record_matmul("joint_loss", {tiles, height, width, inner}, type);
  };
  product(rows, outputs, hidden);
  if (gradient) {
    product(outputs, hidden, rows);
    product(rows, hidden, outputs);
  }
  const FakeRecorder* const recorder = fake_recorder();
  if (recorder == nullptr || !recorder->kernel) return;
  recorder->kernel("joint_loss", gradient ? 2 * logits + 3 * units : logits + units,
                   (gradient ? 4 : 2) * tiles);
}
void record_loss(const Inputs& in, const JointCall& call) { record_tiles(in, call, false); }
void record_gradient(const Inputs& in, const JointCall& call) { record_tiles(in, call, true); }

using Maybe = std::optional<Tensor>;  // autograd accepts an absent tensor only as an optional
Maybe maybe(const Tensor& x) { return x.defined() ? Maybe(x) : std::nullopt; }

struct JointFunction : torch::autograd::Function<JointFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& f, const Tensor& g, const Tensor& weight,
                        const Maybe& given_bias, const Tensor& targets, const Maybe& given_samples,
                        const c10::intrusive_ptr<JointCall>& call) {
    const Tensor bias = given_bias.value_or(Tensor()), samples = given_samples.value_or(Tensor());
    const Inputs in(f, g, weight, bias, targets, samples);
    Arguments with(*call, in);
    const Arguments::Bytes bytes = with.bytes();
    const Tensor workspace = native::bytes(bytes.workspace, f.device());
    const Tensor scratch = native::bytes(bytes.scratch, f.device());
    with.use(workspace, scratch);
    const auto fp32 = f.options().dtype(torch::kFloat32);
    const bool each = call->options.reduction == "none";
    const Tensor losses = each ? torch::empty({f.size(0)}, fp32) : torch::empty({}, fp32);
    if (f.is_meta())
      record_loss(in, *call);
    else
      native::check(octavo_transducer_joint_loss(&with.args, &with.joint, losses.mutable_data_ptr<float>()),
                    "");
    context->save_for_backward({f, g, weight, bias, targets, samples, workspace});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return losses;
  }

  static variable_list backward(AutogradContext* context, const variable_list& upstream) {
    check_first_gradient("joint_loss");
    const auto call = c10::static_intrusive_pointer_cast<JointCall>(context->saved_data["call"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    const Inputs in(saved[0], saved[1], saved[2], saved[3], saved[4], saved[5]);
    Arguments with(*call, in);
    const Arguments::Bytes bytes = with.bytes();
    const Tensor scratch = native::bytes(bytes.scratch, in.f.device());
    with.use(saved[6], scratch);
    const Tensor grad_losses = upstream[0].to(torch::kFloat32).contiguous();
    auto grads = native::sized<octavo_transducer_joint_grads>();
    grads.grad_losses = grad_losses.const_data_ptr<float>();
    // Gradients are in fp32, for the tensors that need one, and converted to the tensors' types below.
    const std::array<float**, 4> places = {&grads.encoder, &grads.predictor, &grads.weight, &grads.bias};
    variable_list out(7);  // `bias` is last, so its absence shifts no index of the others
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (!saved[i].defined() || !context->needs_input_grad(i)) continue;
      out[i] = torch::empty(saved[i].sizes(), in.f.options().dtype(torch::kFloat32));
      *places[i] = out[i].mutable_data_ptr<float>();
    }
    if (in.f.is_meta())
      record_gradient(in, *call);
    else
      native::check(octavo_transducer_joint_gradient(&with.args, &with.joint, &grads), "");
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (out[i].defined()) out[i] = out[i].to(saved[i].scalar_type());
    }
    return out;
  }
};

void check_shapes(const Tensor& f, const Tensor& g, const Tensor& weight, const Tensor& bias,
                  const Tensor& targets, const JointCall& call) {
  TORCH_CHECK(f.dim() == 3 && g.dim() == 3 && weight.dim() == 2 && f.size(0) == g.size(0) &&
                  f.size(2) == g.size(2) && f.size(2) == weight.size(1),
              "joint_loss: encoder ", f.sizes(), ", predictor ", g.sizes(), ", weight ", weight.sizes(),
              "; expected [batch, frames, hidden], [batch, labels + 1, hidden] and [outputs, hidden]");
  TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "joint_loss: bias ",
              bias.sizes(), ", expected [", weight.size(0), "]");
  TORCH_CHECK(targets.dim() == 2 && targets.size(0) == f.size(0) && targets.size(1) == g.size(1) - 1 &&
                  targets.scalar_type() == torch::kInt64,
              "joint_loss: targets ", targets.scalar_type(), " ", targets.sizes(), ", expected Long [",
              f.size(0), ", ", g.size(1) - 1, "]: the predictor has one position more than labels");
  for (const auto* lengths : {&call.frames, &call.labels}) {
    TORCH_CHECK(static_cast<std::int64_t>(lengths->size()) == f.size(0), "joint_loss: ", lengths->size(),
                " lengths, expected ", f.size(0), ": one for each clip");
  }
  for (const Tensor& other : {g, weight, bias, targets}) {
    TORCH_CHECK(!other.defined() || other.device() == f.device(), "joint_loss: a tensor is on ",
                other.device(), ", expected ", f.device(), ", where the encoder's frames are");
  }
}

}  // namespace

Tensor joint_loss(const Tensor& f, const Tensor& g, const Tensor& weight, const Tensor& bias,
                  const Tensor& targets, std::span<const std::int64_t> frame_lengths,
                  std::span<const std::int64_t> label_lengths, const TransducerOptions& options,
                  const Drop& drop) {
  auto call = c10::make_intrusive<JointCall>();
  call->options = options;
  call->frames.assign(frame_lengths.begin(), frame_lengths.end());
  call->labels.assign(label_lengths.begin(), label_lengths.end());
  check_shapes(f, g, weight, bias, targets, *call);
  if (!drop.training) call->options.omega = 0.0;
  Tensor samples;
  if (drop.training && drop.probability > 0.0) {
    samples = drop.pass.samples;
    TORCH_CHECK(samples.defined() && samples.dim() == 1 && samples.size(0) == f.size(0) &&
                    samples.scalar_type() == torch::kInt64 && samples.device() == f.device(),
                "joint_loss: the pass needs the number of each clip, Long [", f.size(0), "] on ", f.device());
    samples = samples.contiguous();
    call->dropout = drop.probability;
  }
  call->seed = drop.pass.seed;
  call->step = drop.pass.step;
  call->layer = drop.layer;
  const bool known = native::dtype_number(f.scalar_type()) >= 0;
  const Tensor frames = known ? f : f.to(torch::kFloat32);
  // If the core has no code for the GPU, the CPU computes the loss.
  if (frames.is_cpu() || frames.is_meta() || octavo::has_cuda())
    return JointFunction::apply(frames, g, weight, maybe(bias), targets, maybe(samples), call);
  const auto here = [](const Tensor& x) { return x.defined() ? maybe(x.cpu()) : std::nullopt; };
  return JointFunction::apply(frames.cpu(), g.cpu(), weight.cpu(), here(bias), targets.cpu(), here(samples),
                              call)
      .to(f.device());
}

}  // namespace octavo_train
