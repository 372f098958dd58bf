// Computes checksums and compares the GPU with the CPU; see check.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/check.h"

#include "benchmarks/engine/data.h"
#include "benchmarks/engine/norm.h"
#include "apps/octavo/common/cli.h"

#include <array>
#include <bit>
#include <cstdio>

namespace octavo::cli {
namespace {

constexpr int kSteps = 3;
constexpr double kZeros = 0.5;
// Row length of 1-d tensors, if rows have no gradient; rows cross quantization blocks.
constexpr std::int64_t kRow = 48;

std::vector<TensorShape> fixed_shapes() {
  std::vector<TensorShape> shapes;
  for (const std::int64_t numel : {1, 31, 255, 256, 257, 4095, 4097, 100003})
    shapes.push_back(TensorShape("flat", {numel}));
  shapes.push_back(TensorShape("2d", {64, 96}));
  shapes.push_back(TensorShape("3d", {1024, 1, 9}));
  shapes.push_back(TensorShape("4d", {16, 3, 5, 7}));
  for (TensorShape& shape : shapes)
    if (shape.ndim == 1) shape.row = kRow;
  return shapes;
}

std::vector<Workload::Piece> results(BenchDevice& device, const RunSpec& run, double zeros) {
  const BenchTensors tensors{fixed_shapes(), zeros};
  Workload workload(device, run, tensors, tensor_specs(run, tensors.shapes, true));
  for (int step = 1; step <= kSteps; ++step) {
    workload.fill_grads(step);
    workload.step();
  }
  if (run.guard) workload.check_taken();
  return workload.read();
}

std::string checksum(const std::vector<Workload::Piece>& pieces) {
  std::uint64_t hash = kHashStart;
  for (const Workload::Piece& piece : pieces) hash = fnv1a(hash, piece.bytes);
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

std::string hex(std::byte value) {
  std::array<char, 5> text{};
  std::snprintf(text.data(), text.size(), "0x%02x", std::to_integer<unsigned>(value));
  return text.data();
}

// Returns the first piece that differs and its first differing byte, or an empty string if all are equal.
std::string difference(const std::vector<Workload::Piece>& cpu, const std::vector<Workload::Piece>& gpu) {
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    const auto &a = cpu[i].bytes, &b = gpu[i].bytes;
    std::size_t count = 0, first = 0;
    for (std::size_t at = 0; at < a.size(); ++at)
      if (a[at] != b[at] && count++ == 0) first = at;
    if (count > 0)
      return "GPU and CPU differ in " + cpu[i].what + ": " + std::to_string(count) + " of " +
             std::to_string(a.size()) + " bytes, first byte " + std::to_string(first) + " (CPU " +
             hex(a[first]) + ", GPU " + hex(b[first]) + ")";
  }
  return {};
}

}  // namespace

Check check_steps(BenchDevice& device, const RunSpec& run, bool zero_rows) {
  const std::unique_ptr<BenchDevice> host = make_host_device(run.threads);
  const std::vector<Workload::Piece> expected = results(*host, run, 0.0);
  Check out{checksum(expected), {}};
  if (!device.on_gpu()) return out;
  try {
    out.error = difference(expected, results(device, run, 0.0));
    if (out.error.empty() && zero_rows) {
      out.error = difference(results(*host, run, kZeros), results(device, run, kZeros));
      if (!out.error.empty()) out.error = "with rows without a gradient: " + out.error;
    }
  } catch (const Failure& failure) {
    out.error = failure.what();
  }
  return out;
}

std::string check_norm(BenchDevice& device, const RunSpec& run) {
  if (!device.on_gpu()) return {};
  const std::unique_ptr<BenchDevice> host = make_host_device(run.threads);
  const BenchTensors tensors{fixed_shapes(), 0.0};
  try {
    const GradNorm cpu = NormWorkload(*host, run, tensors).result(),
                   gpu = NormWorkload(device, run, tensors).result();
    const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
    if (bits(cpu.l2) == bits(gpu.l2) && bits(cpu.max) == bits(gpu.max) && cpu.nonfinite == gpu.nonfinite)
      return {};
    return "GPU and CPU differ in the norm: l2 " + std::to_string(gpu.l2) + " and " + std::to_string(cpu.l2) +
           ", max " + std::to_string(gpu.max) + " and " + std::to_string(cpu.max) + ", non-finite " +
           std::to_string(gpu.nonfinite) + " and " + std::to_string(cpu.nonfinite);
  } catch (const Failure& failure) {
    return failure.what();
  }
}

}  // namespace octavo::cli
