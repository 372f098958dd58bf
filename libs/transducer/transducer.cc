// The public transducer loss: checks, the workspace, and the call of the device's backend.
// SPDX-License-Identifier: MIT
#include "formula/stochastic_round.h"
#include "optimizers/checks.h"
#include "status/first_error.h"
#include "transducer/backend.h"
#include "transducer/lattice.h"

#include <bit>
#include <string>

namespace octavo {

std::uint64_t transducer::key_of(const TransducerArgs& args, bool lengths) {
  std::uint64_t key = 0;
  const auto add = [&](auto value) {
    key = formula::mix64((key ^ static_cast<std::uint64_t>(value)) + formula::kGolden);
  };
  for (const auto value : {args.batch, args.frames, args.positions, args.tokens, args.blank}) add(value);
  add(args.dtype);
  add(transducer::is_rnnt(args));
  add(std::bit_cast<std::uint64_t>(args.sigma));
  for (const std::int64_t duration : args.durations) add(duration);
  for (std::int64_t b = 0; lengths && b < args.batch; ++b) {
    add(args.logit_lengths[b]);
    add(args.target_lengths[b]);
  }
  return key;
}

namespace {

using transducer::Workspace;

constexpr const char* kWhere = "[transducer]";
constexpr std::string_view kReductions[] = {"mean_batch", "mean", "mean_volume", "sum", "none"};

bool on_gpu(const TransducerArgs& args) { return args.device.kind == DeviceKind::cuda; }

Result<std::int64_t> bytes_needed(const TransducerArgs& args) {
  if (on_gpu(args)) return transducer::workspace_bytes_cuda(args);
  return transducer::workspace_bytes(args.batch, transducer::all_cells(args));
}

Status check_call(const TransducerArgs& args) {
  OCTAVO_TRY(transducer::check_args(args));
  if (args.batch == 0) {
    if (args.reduction == TransducerReduction::none || args.reduction == TransducerReduction::sum) return {};
    return Status::invalid(kWhere, " batch: got 0, expected at least 1 (zero clips have no mean)");
  }
  const Result<std::int64_t> bytes = bytes_needed(args);
  if (!bytes.ok()) return bytes.status();
  return check_workspace(kWhere, args.workspace, *bytes, "transducer_workspace_bytes()");
}

}  // namespace

Result<TransducerReduction> parse_transducer_reduction(std::string_view text) {
  std::string known;
  for (std::size_t i = 0; i < std::size(kReductions); ++i) {
    if (text == kReductions[i]) return static_cast<TransducerReduction>(i);
    known += (i == 0 ? "" : ", ") + std::string(kReductions[i]);
  }
  return Status::invalid(kWhere, " reduction: got '", text, "', expected one of ", known);
}

bool draws_rnnt(double omega, std::uint64_t seed, std::uint64_t step) {
  constexpr std::uint64_t kOwn = 0x5444542072616E64U;  // differs from the keys of dropout and rounding
  const std::uint64_t bits = formula::mix64(formula::round_base(seed, step) ^ kOwn);
  return static_cast<double>(bits >> 11) * 0x1p-53 < omega;
}

Result<std::int64_t> transducer_workspace_bytes(const TransducerArgs& args) {
  OCTAVO_TRY(on_gpu(args) ? transducer::check_sizes(args) : transducer::check_lengths(args));
  return bytes_needed(args);
}

Status transducer_loss(const TransducerArgs& args, float* losses) {
  OCTAVO_TRY(check_call(args));
  OCTAVO_TRY(transducer::check_losses(args, losses));
  if (args.batch == 0 && args.reduction == TransducerReduction::none) return {};
  if (on_gpu(args)) return transducer::loss_cuda(args, losses);
  if (args.batch == 0) {
    *losses = 0.0F;
    return {};
  }
  transducer::loss_cpu(args, losses);
  *Workspace(args.workspace, args.batch).head = {transducer::key_of(args, true), 0};
  return {};
}

Status transducer_gradient(const TransducerArgs& args, const float* grad_losses,
                           TransducerView<void> token_grad, TransducerView<void> duration_grad) {
  OCTAVO_TRY(check_call(args));
  if (args.batch == 0) return {};
  OCTAVO_TRY(transducer::check_grads(args, grad_losses, token_grad, duration_grad));
  if (on_gpu(args)) return transducer::gradient_cuda(args, grad_losses, token_grad, duration_grad);
  if (Workspace(args.workspace, args.batch).head->key != transducer::key_of(args, true)) {
    return Status::invalid(
        kWhere, " workspace: was not filled by transducer_loss with these arguments; call it first");
  }
  transducer::gradient_cpu(args, grad_losses, token_grad, duration_grad);
  return {};
}

}  // namespace octavo
