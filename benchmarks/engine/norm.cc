// The benchmark's gradient norm; see norm.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/norm.h"

#include "apps/octavo/common/cli.h"

#include <octavo/describe.h>

#include <cstring>

namespace octavo::cli {

RunSpec without_states(RunSpec run) {
  run.config.switches = 0;
  run.config.momentum = false;
  for (const AlgorithmInfo& info : algorithms()) {
    run.config.algorithm = info.number;
    if (slots(info.number, 0).empty()) break;  // an algorithm without moments
  }
  run.state = StateFormat::fp32;
  run.store = WeightStore::nearest;
  run.block_size = 0;
  run.guard = false;
  return run;
}

NormWorkload::NormWorkload(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors)
    : device_(device),
      threads_(run.threads),
      tensors_(device, without_states(run), tensors, tensor_specs(without_states(run), tensors.shapes, true)),
      out_(device.allocate(sizeof(GradNorm))) {
  group_.push_back(take(NormGroup::create(device.device(), tensors_.grads())));
  workspace_ = device.allocate(group_.front().workspace_bytes());
}

void NormWorkload::step() {
  check(group_.front().run({workspace_.data(), static_cast<std::size_t>(workspace_.size)},
                           reinterpret_cast<GradNorm*>(out_.data()), device_.stream(), threads_));
}

GradNorm NormWorkload::result() {
  step();
  const std::vector<std::byte> bytes = device_.read(out_.data(), out_.size);
  GradNorm out;
  std::memcpy(&out, bytes.data(), sizeof out);
  return out;
}

}  // namespace octavo::cli
