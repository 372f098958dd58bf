// SPDX-License-Identifier: MIT
#include "train/run/step_batches.h"

#include "train/console/signals.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <span>
#include <string>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP};

// A character per micro-batch of a rank: '1' if the batch has rows.
using ReadPasses = std::string;

void exchange(ProcessGroup& world, StepBatches& share, std::int64_t new_choices) {
  enum { kPasses, kRows, kLength, kPadded, kUnits, kLeftOut, kChoices, kSignals };
  std::array<double, kSignals + kStopSignals.size()> all = {static_cast<double>(share.fed.passes),
                                                            static_cast<double>(share.fed.rows),
                                                            share.fed.length,
                                                            share.fed.padded_length,
                                                            static_cast<double>(share.units),
                                                            static_cast<double>(share.passes_left_out),
                                                            static_cast<double>(new_choices)};
  const int received = StopSignals::received();
  for (std::size_t i = 0; i < kStopSignals.size(); ++i)
    all[kSignals + i] = received == kStopSignals[i] ? 1 : 0;
  world.sum(all);
  share.fed = {static_cast<std::int64_t>(all[kPasses]), static_cast<std::int64_t>(all[kRows]), all[kLength],
               all[kPadded], share.fed.largest};
  share.units = static_cast<std::int64_t>(all[kUnits]);
  share.passes_left_out = static_cast<std::int64_t>(all[kLeftOut]);
  share.new_choices = all[kChoices] > 0;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    if (all[kSignals + i] > 0 && share.signal == 0) share.signal = kStopSignals[i];
  }
}

// Numbers the batches. A batch without rows has no number, and later batches move up, as in one process.
void number(ProcessGroup& world, const ReadPasses& mine, StepBatches& share) {
  std::vector<ReadPasses> all(static_cast<std::size_t>(world.ranks()), ReadPasses(mine.size(), '1'));
  if (share.passes_left_out > 0) all = world.gather(mine);
  std::int64_t next = 0;
  for (std::size_t pass = 0; pass < mine.size(); ++pass) {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank][pass] != '1') continue;
      if (static_cast<int>(rank) == world.rank()) share.numbers.push_back(next);
      ++next;
    }
  }
  for (const ReadPasses& each : all)
    share.most_passes = std::max<std::int64_t>(share.most_passes, std::ranges::count(each, '1'));
}

std::int64_t new_choices(const Run& run) {
  return static_cast<std::int64_t>(run.state.fp8->choices() - run.state.fp8_choices_shared);
}

}  // namespace

StepBatches read_step_batches(Run& run) {
  StepBatches out;
  ReadPasses read;
  const std::uint64_t begin = run.batches.position();
  for (std::int64_t i = 0; i < run.config.training().gradient_accumulation_steps; ++i) {
    const auto asked = std::chrono::steady_clock::now();
    Batch batch = run.batches.next();
    out.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count();
    const bool has_rows = batch.rows() > 0;
    read += has_rows ? '1' : '0';
    if (!has_rows) {
      ++out.passes_left_out;
      continue;
    }
    out.units += batch.rows() * run.data.units_per_row;
    out.fed += {1, batch.rows(), batch.length, batch.padded_length, batch.padded_length};
    out.batches.push_back(std::move(batch));
  }
  if (run.services.world->grouped())
    exchange(*run.services.world, out,
             run.state.fp8 != nullptr && run.services.world->leads() ? new_choices(run) : 0);
  number(*run.services.world, read, out);
  // The largest batch of a dry run takes one position.
  const auto positions = static_cast<std::int64_t>(run.batches.position() - begin);
  out.left_out = std::max<std::int64_t>(positions - out.fed.rows, 0);
  return out;
}

int signal_on_any(ProcessGroup& world) {
  std::int64_t signal = StopSignals::received();
  world.max(std::span(&signal, 1));
  return static_cast<int>(signal);
}

}  // namespace octavo_train
