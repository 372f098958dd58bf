// The checks of the transducer loss. Every message names the argument, its value, and what was expected. On
// the CPU, lengths and labels are read here, before anything is written.
// SPDX-License-Identifier: MIT
#include "formula/describe.h"
#include "optimizers/checks.h"
#include "status/first_error.h"
#include "transducer/invalid_argument.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace octavo::transducer {
namespace {

Status check_enums(const TransducerArgs& args) {
  if (args.dtype > DType::f16) {
    return invalid("dtype", static_cast<std::int64_t>(args.dtype), "0 (f32), 1 (bf16) or 2 (f16)");
  }
  if (args.kind > TransducerKind::rnnt) {
    return invalid("kind", static_cast<std::int64_t>(args.kind), "0 (tdt) or 1 (rnnt)");
  }
  if (args.reduction > TransducerReduction::none) {
    return invalid("reduction", static_cast<std::int64_t>(args.reduction),
                   "0 (mean_batch), 1 (mean), 2 (mean_volume), 3 (sum) or 4 (none)");
  }
  return {};
}

}  // namespace

Status check_sizes(const TransducerArgs& args) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  if (args.batch < 0) return invalid("batch", args.batch, "at least 0");
  std::int64_t product = 1;
  const std::pair<const char*, std::int64_t> sizes[] = {{"batch", std::max<std::int64_t>(args.batch, 1)},
                                                        {"frames", args.frames},
                                                        {"positions", args.positions},
                                                        {"tokens", args.tokens}};
  for (const auto& [name, size] : sizes) {
    if (size < 1) return invalid(name, size, "at least 1");
    if (product > kMost / size) return invalid(name, size, "batch * frames * positions * tokens up to 2^48");
    product *= size;
  }
  if (args.blank < 0 || args.blank >= args.tokens) {
    return invalid("blank", args.blank, "0 to " + std::to_string(args.tokens - 1) + ", the last token");
  }
  return {};
}

namespace {

Status check_numbers(const TransducerArgs& args) {
  const bool tdt = args.kind == TransducerKind::tdt;
  const auto only_zero = [&](const char* name, double value) {
    if (tdt || value == 0.0) return Status();
    return invalid(name, formula::shown(value), "0 (it belongs to tdt)");
  };
  if (!std::isfinite(args.sigma)) return invalid("sigma", formula::shown(args.sigma), "a finite number");
  if (!(args.omega >= 0.0 && args.omega <= 1.0)) {
    return invalid("omega", formula::shown(args.omega), "a probability, 0 to 1");
  }
  return first_error({only_zero("sigma", args.sigma), only_zero("omega", args.omega)});
}

Status check_durations(const TransducerArgs& args) {
  const std::int64_t count = duration_outputs(args);
  if (args.kind == TransducerKind::rnnt) {
    if (count > 0)
      return invalid("durations", std::to_string(count) + " of them", "none (rnnt has no durations)");
    return {};
  }
  if (count < 1) return invalid("durations", "none", "at least one (without durations: rnnt)");
  if (count > kMaxTransducerDurations) {
    return invalid("durations", std::to_string(count) + " of them",
                   "at most " + std::to_string(kMaxTransducerDurations));
  }
  const auto begin = args.durations.begin();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t d = begin[i];
    constexpr std::int64_t kMost = std::int64_t{1} << 32;
    if (d < 0 || d > kMost) return invalid(element("durations", i), d, "0 to 2^32 frames");
    if (std::find(begin, begin + i, d) != begin + i)
      return invalid(element("durations", i), std::to_string(d) + " again", "each duration once");
  }
  if (count == 1 && begin[0] == 0)
    return invalid("durations", "only 0", "one of at least 1: blank must advance");
  return {};
}

Status check_length_buffers(const TransducerArgs& args) {
  return first_error(
      {check_buffer(std::string(kWhere) + "logit_lengths", args.logit_lengths, 8 * args.batch, 8),
       check_buffer(std::string(kWhere) + "target_lengths", args.target_lengths, 8 * args.batch, 8)});
}

Status check_options(const TransducerArgs& args) {
  const std::string where = "[transducer]";
  OCTAVO_TRY(check_device(where, args.device));
  return first_error({check_stream(where, args.device, args.stream), check_threads(where, args.threads),
                      check_enums(args), check_numbers(args), check_durations(args)});
}

// REQUIRES: checked lengths.
Status check_targets(const TransducerArgs& args) {
  const std::int64_t stride = target_stride(args);
  if (stride < 0 || stride > (std::int64_t{1} << 48) / args.batch)
    return invalid("target_stride", stride, "at least 0, for up to 2^48 labels");
  OCTAVO_TRY(check_buffer(std::string(kWhere) + "targets", args.targets, target_bytes(args), 8));
  if (args.device.kind == DeviceKind::cuda) return {};  // not read on the host
  for (std::int64_t b = 0; b < args.batch; ++b) {
    for (std::int64_t u = 0; u < args.target_lengths[b]; ++u) {
      const std::int64_t label = args.targets[b * stride + u];
      if (label >= 0 && label < args.tokens && label != args.blank) continue;
      return invalid(element("targets", b) + element("", u), label,
                     "0 to " + std::to_string(args.tokens - 1) + ", and not " + std::to_string(args.blank) +
                         ", the blank");
    }
  }
  return {};
}

}  // namespace

Status check_lengths(const TransducerArgs& args) {
  OCTAVO_TRY(check_sizes(args));
  OCTAVO_TRY(check_length_buffers(args));
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const std::int64_t frames = args.logit_lengths[b], labels = args.target_lengths[b];
    if (frames < 1 || frames > args.frames) {
      return invalid(element("logit_lengths", b), frames,
                     "1 to " + std::to_string(args.frames) + ", the frames of the logits");
    }
    if (labels < 0 || labels > args.positions - 1) {
      return invalid(element("target_lengths", b), labels,
                     "0 to " + std::to_string(args.positions - 1) + ": the logits have " +
                         std::to_string(args.positions) + " positions, one more than labels");
    }
  }
  return {};
}

Status check_args(const TransducerArgs& args) {
  OCTAVO_TRY(check_options(args));
  const bool readable = args.device.kind == DeviceKind::cpu;
  OCTAVO_TRY(readable ? check_lengths(args) : check_sizes(args));
  if (args.batch == 0) return {};
  return first_error({check_length_buffers(args), check_logits(args), check_targets(args)});
}

Status check_joint_sizes(const TransducerArgs& args, const TransducerJoint& joint) {
  OCTAVO_TRY(check_options(args));
  OCTAVO_TRY(check_lengths(args));
  return check_joint_numbers(args, joint);
}

Status check_joint(const TransducerArgs& args, const TransducerJoint& joint) {
  OCTAVO_TRY(check_joint_sizes(args, joint));
  return first_error({check_targets(args), check_joint_memory(args, joint)});
}

}  // namespace octavo::transducer
