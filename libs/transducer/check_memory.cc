// Checks the memory of a transducer loss: views, and that written memory overlaps with no other buffer.
// SPDX-License-Identifier: MIT
#include "optimizers/checks.h"
#include "status/first_error.h"
#include "transducer/invalid_argument.h"

#include <algorithm>
#include <string>

namespace octavo::transducer {
namespace {

// Returns the bytes from the first element to the last.
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
      return invalid(element(name + ".strides", static_cast<std::int64_t>(i)), strides[i],
                     "at least 0, for a tensor of up to 2^48 elements");
    }
  }
  return check_buffer(std::string(kWhere) + name, data, extent(args, strides, outputs),
                      dtype_bytes(args.dtype));
}

// A gradient's rows must not overlap: each of its strides must be at least the size of what it steps over.
Status check_written(const TransducerArgs& args, const std::string& name, std::array<std::int64_t, 3> strides,
                     std::int64_t outputs) {
  if (outputs == 0) return {};
  strides = strides_of(args, strides, outputs);
  const std::int64_t sizes[] = {args.batch, args.frames, args.positions};
  std::int64_t inner = outputs;
  for (std::int64_t i = 2; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (sizes[at] > 1 && strides[at] < inner) {
      return invalid(element(name + ".strides", i), strides[at],
                     "at least " + std::to_string(inner) + ": rows of a gradient must not overlap");
    }
    inner += (sizes[at] - 1) * strides[at];
  }
  return {};
}

// A view with all of its strides.
struct Part {
  const char* name;
  const void* data;
  std::array<std::int64_t, 3> strides;
  std::int64_t outputs;
};

std::span<const std::byte> part_bytes(const TransducerArgs& args, const Part& part) {
  return bytes_of(part.data, part.outputs == 0 ? 0 : extent(args, part.strides, part.outputs));
}

// Returns true if two views share no element: their ranges are apart, or their rows have equal strides and
// are apart.
bool apart(const TransducerArgs& args, const Part& a, const Part& b) {
  if (!shares_bytes(part_bytes(args, a), part_bytes(args, b))) return true;
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

template <class View>
Part part(const TransducerArgs& args, const char* name, const View& view, std::int64_t outputs) {
  return {name, view.data, strides_of(args, view.strides, outputs), outputs};
}

}  // namespace

std::array<Buffer, 4> indices(const TransducerArgs& args) {
  return {{{"durations", std::as_bytes(args.durations)},
           {"targets", bytes_of(args.targets, target_bytes(args))},
           {"logit_lengths", bytes_of(args.logit_lengths, 8 * args.batch)},
           {"target_lengths", bytes_of(args.target_lengths, 8 * args.batch)}}};
}

Status check_apart(const Buffer& written, std::span<const Buffer> others) {
  for (const Buffer& other : others) {
    if (shares_bytes(written.bytes, other.bytes))
      return invalid(written.name, std::string("memory of ") + other.name, "separate memory");
  }
  return {};
}

std::int64_t target_bytes(const TransducerArgs& args) {
  const std::int64_t width = args.positions - 1;
  return width == 0 || args.batch == 0 ? 0 : 8 * ((args.batch - 1) * target_stride(args) + width);
}

std::array<std::int64_t, 3> strides_of(const TransducerArgs& args, std::array<std::int64_t, 3> strides,
                                       std::int64_t outputs) {
  if (strides != std::array<std::int64_t, 3>{}) return strides;
  return {args.frames * args.positions * outputs, args.positions * outputs, outputs};
}

Status check_logits(const TransducerArgs& args) {
  return first_error(
      {check_view(args, "token_logits", args.token_logits.data, args.token_logits.strides, args.tokens),
       check_view(args, "duration_logits", args.duration_logits.data, args.duration_logits.strides,
                  duration_outputs(args))});
}

Status check_losses(const TransducerArgs& args, const float* losses) {
  const std::int64_t bytes = loss_bytes(args);
  OCTAVO_TRY(check_buffer(std::string(kWhere) + "losses", losses, bytes, 4));
  if (args.batch == 0) return {};
  const Buffer logits[] = {
      {"token_logits", part_bytes(args, part(args, "", args.token_logits, args.tokens))},
      {"duration_logits", part_bytes(args, part(args, "", args.duration_logits, duration_outputs(args)))}};
  const Buffer workspace{"workspace", args.workspace}, out{"losses", bytes_of(losses, bytes)};
  const auto read = indices(args);
  return first_error({check_apart(workspace, logits), check_apart(workspace, read), check_apart(out, logits),
                      check_apart(out, read), check_apart(out, {&workspace, 1})});
}

Status check_grads(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
                   TransducerView<void> duration_grad) {
  const std::int64_t bytes = loss_bytes(args), durations = duration_outputs(args);
  OCTAVO_TRY(check_buffer(std::string(kWhere) + "grad_losses", grad_losses, bytes, 4));
  const Part written[] = {part(args, "token_grad", token_grad, args.tokens),
                          part(args, "duration_grad", duration_grad, durations)};
  const Part logits[] = {part(args, "token_logits", args.token_logits, args.tokens),
                         part(args, "duration_logits", args.duration_logits, durations)};
  for (const Part& w : written) {
    OCTAVO_TRY(check_view(args, w.name, w.data, w.strides, w.outputs));
    OCTAVO_TRY(check_written(args, w.name, w.strides, w.outputs));
  }
  if (!apart(args, written[0], written[1]))
    return invalid("duration_grad", "memory of token_grad", "separate elements");
  const Buffer others[] = {{"workspace", args.workspace}, {"grad_losses", bytes_of(grad_losses, bytes)}};
  const auto read = indices(args);
  for (std::size_t w = 0; w < 2; ++w) {
    for (std::size_t r = 0; r < 2; ++r) {
      const bool in_place = w == r && same(written[w], logits[r]);
      if (!in_place && !apart(args, written[w], logits[r])) {
        return invalid(written[w].name, std::string("memory of ") + logits[r].name,
                       "the logits' own memory in the same order, or separate memory");
      }
    }
    const Buffer buffer{written[w].name, part_bytes(args, written[w])};
    OCTAVO_TRY(first_error({check_apart(buffer, others), check_apart(buffer, read)}));
  }
  return {};
}

}  // namespace octavo::transducer
