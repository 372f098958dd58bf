// What the transducer loss refuses. Every message names the argument, its value, and what was expected. On
// the CPU lengths and labels are read here, before anything is written.
// SPDX-License-Identifier: MIT
#include "core/first_error.h"
#include "formula/describe.h"
#include "optimizers/resolve.h"
#include "transducer/backend.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace octavo::transducer {
namespace {

const std::string kWhere = "[transducer] ";  // NOLINT(cert-err58-cpp): short, and made once

Status refuse(const std::string& field, const std::string& got, const std::string& expected) {
  return Status::invalid(kWhere + field + ": got " + got + ", expected " + expected);
}
Status refuse(const std::string& field, std::int64_t got, const std::string& expected) {
  return refuse(field, std::to_string(got), expected);
}
std::string element(const std::string& field, std::int64_t i) {
  return field + "[" + std::to_string(i) + "]";
}

std::int64_t outputs_of_durations(const TransducerArgs& args) {
  return static_cast<std::int64_t>(args.durations.size());
}

Status check_enums(const TransducerArgs& args) {
  if (args.dtype > DType::f16) {
    return refuse("dtype", static_cast<std::int64_t>(args.dtype), "0 (f32), 1 (bf16) or 2 (f16)");
  }
  if (args.kind > TransducerKind::rnnt) {
    return refuse("kind", static_cast<std::int64_t>(args.kind), "0 (tdt) or 1 (rnnt)");
  }
  if (args.reduction > TransducerReduction::none) {
    return refuse("reduction", static_cast<std::int64_t>(args.reduction),
                  "0 (mean_batch), 1 (mean), 2 (mean_volume), 3 (sum) or 4 (none)");
  }
  return {};
}

Status check_sizes(const TransducerArgs& args) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  if (args.batch < 0) return refuse("batch", args.batch, "at least 0");
  std::int64_t product = 1;
  const std::pair<const char*, std::int64_t> sizes[] = {{"batch", std::max<std::int64_t>(args.batch, 1)},
                                                        {"frames", args.frames},
                                                        {"positions", args.positions},
                                                        {"tokens", args.tokens}};
  for (const auto& [name, size] : sizes) {
    if (size < 1) return refuse(name, size, "at least 1");
    if (product > kMost / size) return refuse(name, size, "batch * frames * positions * tokens up to 2^48");
    product *= size;
  }
  if (args.blank < 0 || args.blank >= args.tokens) {
    return refuse("blank", args.blank, "0 to " + std::to_string(args.tokens - 1) + ", the last token");
  }
  return {};
}

Status check_numbers(const TransducerArgs& args) {
  const bool tdt = args.kind == TransducerKind::tdt;
  const auto only_zero = [&](const char* name, double value) {
    if (tdt || value == 0.0) return Status();
    return refuse(name, formula::shown(value), "0 (it belongs to tdt)");
  };
  if (!std::isfinite(args.sigma)) return refuse("sigma", formula::shown(args.sigma), "a finite number");
  if (!(args.omega >= 0.0 && args.omega <= 1.0)) {
    return refuse("omega", formula::shown(args.omega), "a probability, 0 to 1");
  }
  return first_error({only_zero("sigma", args.sigma), only_zero("omega", args.omega)});
}

Status check_durations(const TransducerArgs& args) {
  const std::int64_t count = outputs_of_durations(args);
  if (args.kind == TransducerKind::rnnt) {
    if (count > 0)
      return refuse("durations", std::to_string(count) + " of them", "none (rnnt has no durations)");
    return {};
  }
  if (count < 1) return refuse("durations", "none", "at least one (without durations: rnnt)");
  if (count > kMaxTransducerDurations) {
    return refuse("durations", std::to_string(count) + " of them",
                  "at most " + std::to_string(kMaxTransducerDurations));
  }
  const auto begin = args.durations.begin();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t d = begin[i];
    constexpr std::int64_t kMost = std::int64_t{1} << 32;
    if (d < 0 || d > kMost) return refuse(element("durations", i), d, "0 to 2^32 frames");
    if (std::find(begin, begin + i, d) != begin + i)
      return refuse(element("durations", i), std::to_string(d) + " again", "each duration once");
  }
  if (count == 1 && begin[0] == 0)
    return refuse("durations", "0 alone", "one of at least 1: blank must advance");
  return {};
}

// The bytes from the first element to the last.
std::int64_t extent(const TransducerArgs& args, const std::array<std::int64_t, 3>& strides,
                    std::int64_t outputs) {
  return dtype_bytes(args.dtype) * ((args.batch - 1) * strides[0] + (args.frames - 1) * strides[1] +
                                    (args.positions - 1) * strides[2] + outputs);
}

Status check_view(const TransducerArgs& args, const std::string& name, const void* data,
                  std::array<std::int64_t, 3> strides, std::int64_t outputs) {
  if (outputs == 0) return {};
  strides = strides_of(args, strides, outputs);
  for (std::size_t i = 0; i < 3; ++i) {
    constexpr std::int64_t kMost = std::int64_t{1} << 48;
    const std::int64_t size = i == 0 ? args.batch : i == 1 ? args.frames : args.positions;
    if (strides[i] < 0 || (size > 1 && strides[i] > kMost / (size - 1))) {
      return refuse(element(name + ".strides", static_cast<std::int64_t>(i)), strides[i],
                    "at least 0, for a tensor of up to 2^48 elements");
    }
  }
  return check_buffer(kWhere + name, data, extent(args, strides, outputs), dtype_bytes(args.dtype));
}

// A gradient's rows may not share memory with one another: each of its strides must step over what it holds.
Status check_written(const TransducerArgs& args, const std::string& name, std::array<std::int64_t, 3> strides,
                     std::int64_t outputs) {
  if (outputs == 0) return {};
  strides = strides_of(args, strides, outputs);
  const std::int64_t sizes[] = {args.batch, args.frames, args.positions};
  std::int64_t inner = outputs;
  for (std::int64_t i = 2; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (sizes[at] > 1 && strides[at] < inner) {
      return refuse(element(name + ".strides", i), strides[at],
                    "at least " + std::to_string(inner) + ": rows of a gradient share no memory");
    }
    inner += (sizes[at] - 1) * strides[at];
  }
  return {};
}

struct Part {
  const char* name;
  const void* data;
  std::array<std::int64_t, 3> strides;
  std::int64_t outputs;
};

std::span<const std::byte> bytes_of(const void* data, std::int64_t bytes) {
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0))};
}
std::span<const std::byte> bytes_of(const TransducerArgs& args, const Part& part) {
  return bytes_of(part.data, part.outputs == 0 ? 0 : extent(args, part.strides, part.outputs));
}

// Two views share no element: apart as a whole, or rows of equal strides side by side.
bool apart(const TransducerArgs& args, const Part& a, const Part& b) {
  if (!shares_bytes(bytes_of(args, a), bytes_of(args, b))) return true;
  if (a.strides != b.strides) return false;
  const auto size = static_cast<std::uintptr_t>(dtype_bytes(args.dtype));
  const Part& low = a.data < b.data ? a : b;
  const Part& high = a.data < b.data ? b : a;
  const std::uintptr_t step =
      reinterpret_cast<std::uintptr_t>(high.data) - reinterpret_cast<std::uintptr_t>(low.data);
  const auto between = static_cast<std::int64_t>(step / size);
  // Within one row of the wider tensor: no stride is shorter than both parts together.
  const std::int64_t row = between + high.outputs;
  const bool fits = (args.positions == 1 || a.strides[2] >= row) &&
                    (args.frames == 1 || a.strides[1] >= row) && (args.batch == 1 || a.strides[0] >= row);
  return step % size == 0 && between >= low.outputs && fits;
}
bool same(const Part& a, const Part& b) { return a.data == b.data && a.strides == b.strides; }

}  // namespace

std::array<std::int64_t, 3> strides_of(const TransducerArgs& args, std::array<std::int64_t, 3> strides,
                                       std::int64_t outputs) {
  if (strides != std::array<std::int64_t, 3>{}) return strides;
  return {args.frames * args.positions * outputs, args.positions * outputs, outputs};
}

Status check_lengths(const TransducerArgs& args) {
  if (Status bad = check_sizes(args); !bad.ok()) return bad;
  if (Status bad =
          first_error({check_buffer(kWhere + "logit_lengths", args.logit_lengths, 8 * args.batch, 8),
                       check_buffer(kWhere + "target_lengths", args.target_lengths, 8 * args.batch, 8)});
      !bad.ok()) {
    return bad;
  }
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const std::int64_t frames = args.logit_lengths[b], labels = args.target_lengths[b];
    if (frames < 1 || frames > args.frames) {
      return refuse(element("logit_lengths", b), frames,
                    "1 to " + std::to_string(args.frames) + ", the frames of the logits");
    }
    if (labels < 0 || labels > args.positions - 1) {
      return refuse(element("target_lengths", b), labels,
                    "0 to " + std::to_string(args.positions - 1) + ": the logits have " +
                        std::to_string(args.positions) + " positions, one more than labels");
    }
  }
  return {};
}

Status check_args(const TransducerArgs& args) {
  const std::string where = "[transducer]";
  if (Status bad = check_device(where, args.device); !bad.ok()) return bad;
  if (args.device.kind == DeviceKind::cuda) {
    return Status::unsupported(kWhere + "device: got cuda:" + std::to_string(args.device.index) +
                               ", but this loss has no CUDA backend yet; move the logits to the CPU");
  }
  if (Status bad =
          first_error({check_stream(where, args.device, args.stream), check_threads(where, args.threads),
                       check_enums(args), check_numbers(args), check_durations(args)});
      !bad.ok()) {
    return bad;
  }
  if (Status bad = check_lengths(args); !bad.ok()) return bad;
  if (args.batch == 0) return {};
  if (Status bad = first_error(
          {check_view(args, "token_logits", args.token_logits.data, args.token_logits.strides, args.tokens),
           check_view(args, "duration_logits", args.duration_logits.data, args.duration_logits.strides,
                      outputs_of_durations(args))});
      !bad.ok()) {
    return bad;
  }
  const std::int64_t width = args.positions - 1;
  const std::int64_t stride = args.target_stride != 0 ? args.target_stride : width;
  if (stride < 0 || stride > (std::int64_t{1} << 48) / args.batch)
    return refuse("target_stride", stride, "at least 0, for up to 2^48 labels");
  const std::int64_t bytes = width == 0 ? 0 : 8 * ((args.batch - 1) * stride + width);
  if (Status bad = check_buffer(kWhere + "targets", args.targets, bytes, 8); !bad.ok()) return bad;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    for (std::int64_t u = 0; u < args.target_lengths[b]; ++u) {
      const std::int64_t label = args.targets[b * stride + u];
      if (label >= 0 && label < args.tokens && label != args.blank) continue;
      return refuse(element("targets", b) + element("", u), label,
                    "0 to " + std::to_string(args.tokens - 1) + ", and not " + std::to_string(args.blank) +
                        ", the blank");
    }
  }
  return {};
}

Status check_losses(const TransducerArgs& args, const float* losses) {
  const std::int64_t bytes = 4 * (args.reduction == TransducerReduction::none ? args.batch : 1);
  if (Status bad = check_buffer(kWhere + "losses", losses, bytes, 4); !bad.ok()) return bad;
  const auto written = bytes_of(losses, bytes);
  const std::int64_t durations = outputs_of_durations(args);
  const std::pair<const char*, std::span<const std::byte>> others[] = {
      {"token_logits",
       bytes_of(args, {"", args.token_logits.data, strides_of(args, args.token_logits.strides, args.tokens),
                       args.tokens})},
      {"duration_logits",
       bytes_of(args, {"", args.duration_logits.data,
                       strides_of(args, args.duration_logits.strides, durations), durations})},
      {"workspace", args.workspace}};
  for (const auto& [name, other] : others) {
    if (shares_bytes(written, other))
      return refuse("losses", std::string("memory of ") + name, "memory of their own");
    if (std::string_view(name) != "workspace" && shares_bytes(args.workspace, other))
      return refuse("workspace", std::string("memory of ") + name, "memory of its own");
  }
  return {};
}

Status check_grads(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
                   TransducerView<void> duration_grad) {
  const std::int64_t count = args.reduction == TransducerReduction::none ? args.batch : 1;
  if (Status bad = check_buffer(kWhere + "grad_losses", grad_losses, 4 * count, 4); !bad.ok()) return bad;
  const std::int64_t durations = outputs_of_durations(args);
  for (const auto& [name, view, outputs] :
       {std::tuple{"token_grad", token_grad, args.tokens}, {"duration_grad", duration_grad, durations}}) {
    if (Status bad = check_view(args, name, view.data, view.strides, outputs); !bad.ok()) return bad;
    if (Status bad = check_written(args, name, view.strides, outputs); !bad.ok()) return bad;
  }
  const auto part = [&](const char* name, const auto& view, std::int64_t outputs) {
    return Part{name, view.data, strides_of(args, view.strides, outputs), outputs};
  };
  const Part written[] = {part("token_grad", token_grad, args.tokens),
                          part("duration_grad", duration_grad, durations)};
  const Part read[] = {part("token_logits", args.token_logits, args.tokens),
                       part("duration_logits", args.duration_logits, durations)};
  if (!apart(args, written[0], written[1]))
    return refuse("duration_grad", "memory of token_grad", "elements of its own");
  for (const Part& w : written) {
    for (const Part& r : read) {
      const bool in_place = (&w - written) == (&r - read) && same(w, r);
      if (!in_place && !apart(args, w, r)) {
        return refuse(w.name, std::string("memory of ") + r.name,
                      "the logits' own memory in the same order, or memory apart");
      }
    }
    if (shares_bytes(bytes_of(args, w), args.workspace))
      return refuse(w.name, "memory of workspace", "memory apart");
    if (shares_bytes(bytes_of(args, w), bytes_of(grad_losses, 4 * count)))
      return refuse(w.name, "memory of grad_losses", "memory apart");
  }
  return {};
}

}  // namespace octavo::transducer
