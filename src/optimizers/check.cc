// Checks everything that a caller passes, in one file. Messages name the argument, its value, and the
// expected values.
// SPDX-License-Identifier: MIT
#include "optimizers/checks.h"
#include "optimizers/format_resolution.h"
#include "status/first_error.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

namespace octavo {
namespace {

constexpr std::int64_t kMaxNumel = std::int64_t{1} << 48;

template <std::integral I>
std::string text(I value) {
  return std::to_string(value);
}

std::string text(double value) { return formula::shown(value); }

template <class E>
bool known(E value, std::span<const E> all) {
  return std::find(all.begin(), all.end(), value) != all.end();
}

template <class E>
Status check_enum(const std::string& where, const char* field, E value, std::span<const E> all) {
  if (known(value, all)) return {};
  return Status::invalid(where, ".", field, ": got ", text(static_cast<std::int64_t>(value)),
                         ", expected 0 to ", text(static_cast<std::int64_t>(all.size()) - 1));
}

// Calls f(field, address, bytes, alignment, written) for every buffer of a tensor, until one call returns an
// error.
template <class Fn>
Status for_buffers(const TensorArgs& t, const TensorLayout& size, Fn&& f) {
  static constexpr const char* kCodeFields[] = {"state[0].codes", "state[1].codes", "state[2].codes"};
  static constexpr const char* kScaleFields[] = {"state[0].scales", "state[1].scales", "state[2].scales"};
  const std::int64_t param = dtype_bytes(t.spec.param_dtype);
  const std::int64_t grad = dtype_bytes(t.spec.grad_dtype);
  const std::int64_t residual = t.spec.store == WeightStore::residual16 ? 2 : 1;
  Status bad = first_error({f("param", t.param, t.spec.numel * param, param, true),
                            f("grad", t.grad, t.spec.numel * grad, grad, false),
                            f("residual", t.residual, size.residual_bytes, residual, true)});
  for (std::size_t s = 0; s < static_cast<std::size_t>(size.slots) && bad.ok(); ++s) {
    const std::int64_t codes = code_alignment(t.spec.format);
    bad =
        first_error({f(kCodeFields[s], t.state[s].codes, size.slot[s].codes_bytes, codes, true),
                     f(kScaleFields[s], t.state[s].scales, 4 * size.slot[s].scales, std::int64_t{4}, true)});
  }
  return bad;
}

// Two buffers may share bytes only if none of them is written.
Status check_overlap(const std::string& where, std::vector<BufferRange>& ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const BufferRange& a, const BufferRange& b) { return a.begin < b.begin; });
  const BufferRange* reach[2] = {
      nullptr, nullptr};  // of the ranges so far, the read one and the written one with the greatest end
  for (const BufferRange& now : ranges) {
    for (const int written : {0, 1}) {
      const BufferRange* before = reach[written];
      if (before != nullptr && before->end > now.begin && (now.written || before->written)) {
        return Status::invalid(where, " tensors[", now.tensor, "].", now.field, ": overlaps tensors[",
                               before->tensor, "].", before->field,
                               "; buffers that are written must not share memory");
      }
    }
    const BufferRange*& slot = reach[now.written ? 1 : 0];
    if (slot == nullptr || now.end > slot->end) slot = &now;
  }
  return {};
}

std::string algorithms_with(std::string_view option) {
  std::string out;
  for (const Algorithm each : all_algorithms()) {
    if (switch_bit(each, option) >= 0) out += (out.empty() ? "" : " and ") + std::string(name(each));
  }
  return out;
}

bool within(Range range, double x) {
  const bool finite = std::isfinite(static_cast<float>(x));
  switch (range) {
    case Range::any:
    case Range::flag:
      return finite;
    case Range::non_negative:
      return finite && x >= 0.0;
    case Range::positive:
      return finite && x > 0.0;
    case Range::fraction:
      return x >= 0.0 && x < 1.0;
  }
  return false;
}

// Checks the algorithm's own hyper-parameters. Hyper-parameters of other algorithms are ignored.
Status check_hyper(const GroupConfig& config, const HyperParams& h, bool lr_on_device) {
  const std::string where = tag(config) + " ";
  const std::uint32_t switches = switches_of(config);
  for (const Option& option : describe(config.algorithm)->options) {
    const double value = get(h, option);
    if (option.at == static_cast<std::int32_t>(offsetof(HyperParams, lr)) && lr_on_device) continue;
    if (!within(option.range, value)) {
      return Status::invalid(where, option.name, ": got ", text(value), ", expected ", text(option.range));
    }
    const int bit = option.switches ? switch_bit(config.algorithm, option.name) : -1;
    if (bit >= 0 && value != 0.0 && ((switches >> bit) & 1U) == 0) {
      return Status::invalid(where, option.name, ": got ", text(value),
                             ", expected 0, or a group that was created with ", option.name);
    }
  }
  const std::string bad = conflict(config.algorithm, h);
  return bad.empty() ? Status() : Status::invalid(where + bad);
}

Status check_scalars(const std::string& where, const StepScalars& s) {
  const auto aligned = [&](const char* field, const auto* pointer) -> Status {
    if (pointer == nullptr) return {};
    return check_buffer(where + " scalars." + field, pointer, sizeof *pointer, alignof(decltype(*pointer)));
  };
  return first_error({aligned("lr", s.lr), aligned("step", s.step), aligned("loss_scale", s.loss_scale),
                      aligned("found_inf", s.found_inf), aligned("norm", s.norm),
                      aligned("report", s.report)});
}

}  // namespace

std::string tag(const GroupConfig& config) {
  return std::string("[").append(name(config.algorithm)).append("]");
}

Status check_device(const std::string& where, Device device) {
  if (device.kind != DeviceKind::cpu && device.kind != DeviceKind::cuda) {
    return Status::invalid(where, " device.kind: got ", text(static_cast<std::uint32_t>(device.kind)),
                           ", expected 0 (cpu) or 1 (cuda)");
  }
  if (device.index < 0)
    return Status::invalid(where, " device.index: got ", text(device.index), ", expected at least 0");
  if (device.kind == DeviceKind::cpu && device.index != 0) {
    return Status::invalid(where, " device.index: got ", text(device.index),
                           " for the CPU, expected 0 (there is one)");
  }
  return {};
}

Status check_config(const GroupConfig& config) {
  OCTAVO_TRY(check_enum("[octavo] config", "algorithm", config.algorithm, all_algorithms()));
  if (config.amsgrad && switch_bit(config.algorithm, "amsgrad") < 0) {
    return Status::invalid(tag(config), " amsgrad: got true, expected false (it belongs to ",
                           algorithms_with("amsgrad"), ")");
  }
  if (algorithm_index(config) >= Algorithms::kSize) {
    return Status::invalid(tag(config), " switches: got ", text(config.switches),
                           ", which this algorithm does not have; octavo::switch_bit gives the bits");
  }
  return check_device(tag(config), config.device);
}

Status check_format_taken(const std::string& where, Algorithm algorithm, StateFormat format) {
  const std::uint32_t excluded = describe(algorithm)->excluded_formats;
  const auto taken = [&](StateFormat f) { return ((excluded >> static_cast<std::uint32_t>(f)) & 1U) == 0; };
  if (taken(format)) return {};
  std::string known;
  for (const StateFormat each : all_state_formats()) {
    if (taken(each)) known += (known.empty() ? "" : ", ") + std::string(name(each));
  }
  return Status::invalid(where, ".format: got ", name(format), ", expected one of ", known,
                         ", the formats that ", name(algorithm), " supports");
}

Status check_format(const std::string& where, StateFormat format, std::int64_t block, std::int64_t numel,
                    const std::array<std::int64_t, kMaxDims>& shape, int ndim) {
  OCTAVO_TRY(check_enum(where, "format", format, all_state_formats()));
  if (numel < 0 || numel > kMaxNumel) {
    return Status::invalid(where, ".numel: got ", text(numel), ", expected 0 to 2^48");
  }
  if (default_block_size(format) == 0) {
    if (block != 0) {
      return Status::invalid(where, ".block_size: got ", text(block), ", expected 0 (", name(format),
                             " has no blocks)");
    }
  } else if (block != 0 && (block < kMinBlockSize || block > kMaxBlockSize ||
                            !std::has_single_bit(static_cast<std::uint64_t>(block)))) {
    return Status::invalid(where, ".block_size: got ", text(block), ", expected a power of two from ",
                           text(kMinBlockSize), " to ", text(kMaxBlockSize), ", or 0 for the default");
  }
  if (ndim < 0 || ndim > kMaxDims)
    return Status::invalid(where, ".ndim: got ", text(ndim), ", expected 0 to 8");
  std::int64_t product = 1;
  for (int i = 0; i < ndim; ++i) {
    const std::int64_t dim = shape[static_cast<std::size_t>(i)];
    if (dim < 0 || dim > kMaxNumel) {
      return Status::invalid(where, ".shape[", text(i), "]: got ", text(dim), ", expected 0 to 2^48");
    }
    // Dimensions next to a zero may be large. A product beyond the limit cannot equal numel.
    if (__builtin_mul_overflow(product, dim, &product)) product = -1;
    if (product < 0) break;
  }
  if (ndim > 0 && product != numel) {
    return Status::invalid(where, ".shape: its product is ",
                           (product < 0 ? std::string("over 2^63") : text(product)), ", expected numel, ",
                           text(numel));
  }
  return {};
}

Status check_spec(const std::string& where, const TensorSpec& spec) {
  OCTAVO_TRY(
      first_error({check_format(where, spec.format, spec.block_size, spec.numel, spec.shape, spec.ndim),
                   check_enum(where, "param_dtype", spec.param_dtype, all_dtypes()),
                   check_enum(where, "grad_dtype", spec.grad_dtype, all_dtypes()),
                   check_enum(where, "store", spec.store, all_weight_stores())}));
  if (spec.store != WeightStore::nearest && spec.param_dtype != DType::bf16) {
    return Status::invalid(where, ".store: got ", name(spec.store), " with ", name(spec.param_dtype),
                           " parameters, expected bf16 parameters or the store nearest");
  }
  return {};
}

Status check_buffer(const std::string& where, const void* data, std::int64_t bytes, std::int64_t alignment) {
  if (bytes == 0) return {};
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (data == nullptr)
    return Status::invalid(where, ": got null, expected a buffer of ", text(bytes), " bytes");
  if (address % static_cast<std::uintptr_t>(alignment) != 0) {
    return Status::invalid(where, ": got an address that is not a multiple of ", text(alignment),
                           ", its alignment");
  }
  if (address + static_cast<std::uintptr_t>(bytes) < address) {
    return Status::invalid(where, ": its ", text(bytes), " bytes run past the end of the address space");
  }
  return {};
}

Status check_tensor(const std::string& where, const GroupConfig& config, const TensorArgs& t,
                    std::size_t number, bool with_grad, std::vector<BufferRange>& ranges) {
  OCTAVO_TRY(check_spec(where, t.spec));
  OCTAVO_TRY(check_format_taken(where, config.algorithm, t.spec.format));
  if (t.offset < 0 || t.offset > kMaxNumel) {
    return Status::invalid(where, ".offset: got ", text(t.offset), ", expected 0 to 2^48");
  }
  const auto sizes = layout(config, t.spec);
  if (!sizes.ok()) return sizes.status();
  return for_buffers(t, *sizes,
                     [&](const char* field, const void* data, std::int64_t bytes, std::int64_t alignment,
                         bool written) -> Status {
                       if (!written && !with_grad)
                         return {};  // the gradient is the only buffer that is not written
                       OCTAVO_TRY(check_buffer(where + "." + field, data, bytes, alignment));
                       const auto begin = reinterpret_cast<std::uintptr_t>(data);
                       const auto end = begin + static_cast<std::uintptr_t>(bytes);
                       if (bytes > 0) ranges.push_back({begin, end, written, number, field});
                       return {};
                     });
}

Status check_tensors(const GroupConfig& config, std::span<const TensorArgs> tensors) {
  OCTAVO_TRY(check_config(config));
  std::vector<BufferRange> ranges;
  ranges.reserve(tensors.size() * 7);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string where = tag(config) + " tensors[" + std::to_string(i) + "]";
    OCTAVO_TRY(check_tensor(where, config, tensors[i], i, true, ranges));
  }
  return check_overlap(tag(config), ranges);
}

Status check_grads(std::span<const GradView> grads) {
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const std::string where = "[grad_norm] grads[" + std::to_string(i) + "]";
    TensorSpec spec;
    spec.numel = grads[i].numel;
    spec.grad_dtype = grads[i].dtype;
    OCTAVO_TRY(check_spec(where, spec));
    const std::int64_t size = dtype_bytes(grads[i].dtype);
    OCTAVO_TRY(check_buffer(where + ".data", grads[i].data, grads[i].numel * size, size));
  }
  return {};
}

Status check_apart(const char* field, std::span<const std::byte> bytes, std::span<const GradView> grads) {
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const auto size = static_cast<std::size_t>(grads[i].numel * dtype_bytes(grads[i].dtype));
    if (shares_bytes({static_cast<const std::byte*>(grads[i].data), size}, bytes)) {
      return Status::invalid("[grad_norm] ", field, ": overlaps grads[", i,
                             "].data; it must not share memory with a gradient");
    }
  }
  return {};
}

const char* overlapping(const TensorArgs& t, const TensorLayout& size, std::span<const std::byte> other) {
  const char* found = nullptr;
  const Status stopped = for_buffers(
      t, size, [&](const char* field, const void* data, std::int64_t bytes, std::int64_t, bool) -> Status {
        const auto size_bytes = static_cast<std::size_t>(bytes);
        if (shares_bytes({static_cast<const std::byte*>(data), size_bytes}, other)) found = field;
        return {};
      });
  return stopped.ok() ? found : nullptr;
}

bool shares_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  const auto begin_a = reinterpret_cast<std::uintptr_t>(a.data());
  const auto begin_b = reinterpret_cast<std::uintptr_t>(b.data());
  return !a.empty() && !b.empty() && begin_a < begin_b + b.size() && begin_b < begin_a + a.size();
}

Status check_threads(const std::string& where, int threads) {
  if (threads >= 0 && threads <= 4096) return {};
  return Status::invalid(where, " threads: got ", text(threads), ", expected 0 to 4096");
}

Status check_stream(const std::string& where, Device device, const void* stream) {
  if (stream == nullptr || device.kind != DeviceKind::cpu) return {};
  return Status::invalid(where + " stream: got a stream, expected null (the work is on the CPU)");
}

Status check_workspace(const std::string& where, std::span<const std::byte> workspace, std::int64_t needed,
                       const char* source) {
  if (static_cast<std::int64_t>(workspace.size()) < needed) {
    return Status::invalid(where, " workspace: got ", workspace.size(), " bytes, expected ", text(needed),
                           " (", source, ")");
  }
  return check_buffer(where + " workspace", workspace.data(), needed, 16);
}

Status check_step(const GroupConfig& config, const StepArgs& args, std::int64_t workspace_bytes) {
  const std::string where = tag(config) + " ";
  const HyperParams& h = args.hyper;
  const auto bad_number = [&](const char* field, double value, const char* expected) {
    return Status::invalid(where, field, ": got ", text(value), ", expected ", expected);
  };
  OCTAVO_TRY(check_hyper(config, h, args.scalars.lr != nullptr));
  if (h.decay != Decay::by_name && h.decay != Decay::coupled && h.decay != Decay::decoupled) {
    return Status::invalid(where, "decay: got ", text(static_cast<std::uint32_t>(h.decay)),
                           ", expected 0 (by name), 1 (coupled) or 2 (decoupled)");
  }
  if (!within(Range::any, args.grad_factor))
    return bad_number("grad_factor", args.grad_factor, "a finite number");
  if (!std::isfinite(args.clip_grad_norm) || args.clip_grad_norm < 0.0)
    return bad_number("clip_grad_norm", args.clip_grad_norm, "a finite number of at least 0");
  if (args.clip_grad_norm > 0.0 && args.scalars.norm == nullptr) {
    return bad_number(
        "clip_grad_norm", args.clip_grad_norm,
        "0 where scalars.norm is null; give it the norm of the gradients (NormGroup), or clip with "
        "grad_factor (clip_factor)");
  }
  if (args.scalars.step == nullptr && args.step < 1)
    return Status::invalid(where, "step: got ", text(args.step), ", expected 1 for the first step");
  return first_error(
      {check_scalars(tag(config), args.scalars), check_threads(tag(config), args.threads),
       check_stream(tag(config), config.device, args.stream),
       check_workspace(tag(config), args.workspace, workspace_bytes, "Group::workspace_bytes")});
}

}  // namespace octavo
