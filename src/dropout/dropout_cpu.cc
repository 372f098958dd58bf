// Dropout on the CPU: runs of elements in parallel, cut at the ends of rows.
// SPDX-License-Identifier: MIT
#include "cpu/implementations.h"
#include "cpu/threads.h"
#include "dropout/backend.h"

#include <algorithm>

namespace octavo {

Status dropout_cpu(const DropoutArgs& args) {
  const auto kernels = cpu::kernels();
  if (!kernels.ok()) return kernels.status();
  const std::uint64_t base = formula::dropout_base(args.seed, args.step);
  const formula::Dropout how = formula::make_dropout(args.probability);
  const std::int64_t numel = args.outer * args.batch * args.inner;
  const DropoutRows rows(args);
  auto body = [&](std::int64_t run, cpu::Scratch& scratch) {
    std::int64_t at = run * cpu::kRun;
    const std::int64_t end = std::min(numel, at + cpu::kRun);
    while (at < end) {
      const std::int64_t row = at / rows.length, begin = at % rows.length, place = row / rows.count;
      const std::int64_t sample = args.samples[place % args.batch];
      const std::int64_t of_sample = place / args.batch * rows.count + row % rows.count;
      const std::int64_t count = std::min(rows.length - begin, end - at);
      (*kernels)->drop({args.from, args.to, args.dtype, at, count,
                        static_cast<std::uint64_t>(of_sample * rows.pitch + begin),
                        formula::dropout_key(base, sample, args.layer), how, &scratch});
      at += count;
    }
  };
  cpu::parallel_for((numel + cpu::kRun - 1) / cpu::kRun, args.threads, body);
  return {};
}

}  // namespace octavo
