// The catalogue of GPUs, with the vendor's figures without sparsity.
//
// Memory is the number that the driver reports for a card with its default settings; another driver may
// report some MiB less. `context` is the memory of a process on the device before its first tensor, with
// cuBLAS loaded. It was measured on Hopper (529 MiB, 629 with cuBLAS); for other GPUs it is an estimate. The
// matmul rates of consumer cards are those with fp32 sums, which training uses. Cards that may have an NVLink
// bridge between two are listed without it.
//
// Sources of the latest entries:
// - V100: "NVIDIA V100 Tensor Core GPU" data sheet (SXM2: 125 and 15.7 TFLOP/s, 900 GB/s, NVLink 150 GB/s
//   each way) and "NVIDIA Tesla V100 GPU Architecture" (80 multiprocessors, 6 MiB of L2).
// - B100: "NVIDIA Blackwell Architecture Technical Brief" (3.5, 1.75 and 0.875 PFLOP/s dense, 60 TFLOP/s in
//   fp32). Memory, L2 and multiprocessors are the B200's, which has the same chip.
// - RTX 4070 Ti SUPER: NVIDIA's product page (8,448 cores at 2.61 GHz, 256 bits at 21 Gbit/s).
// SPDX-License-Identifier: MIT
#include "planner/gpus.h"

namespace octavo::plan {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;
// Copies reach these rates of PCIe's 16, 32 and 64 GB/s each way.
constexpr double kPcie3 = 13, kPcie4 = 26, kPcie5 = 55;

struct Figures {
  const char* key;
  const char* name;
  const char*
      others;   // further names, including the driver's, in the form of plain(), separated by one space
  int compute;  // 90 is 9.0
  int multiprocessors;
  int gigabytes;
  double memory_mib, context_mib;
  double bandwidth;                    // GB/s
  double fp32, tf32, fp16, bf16, fp8;  // in TFLOP/s; 0: unsupported
  double cache_mib, peer, host;        // bandwidths in GB/s
};

// clang-format off
constexpr Figures kFigures[] = {
    {"b200", "NVIDIA B200", "b200180gb",
     100, 148, 180, 182633, 700, 7700, 75, 1125, 2250, 2250, 4500, 126, 900, kPcie5},
    {"b100", "NVIDIA B100", "b100180gb b100192gb",
     100, 148, 180, 182633, 700, 7700, 60, 875, 1750, 1750, 3500, 126, 900, kPcie5},
    {"rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell",
     "pro6000 rtx6000pro "
     "rtxpro6000blackwell rtxpro6000blackwellserveredition rtxpro6000blackwellworkstationedition",
     120, 188, 96, 97250, 600, 1792, 125, 252, 504, 504, 1008, 128, kPcie5, kPcie5},
    {"rtx5090", "NVIDIA GeForce RTX 5090", "5090",
     120, 170, 32, 32110, 600, 1792, 104.8, 104.8, 209.5, 209.5, 419, 96, kPcie5, kPcie5},
    {"rtx5080", "NVIDIA GeForce RTX 5080", "5080",
     120, 84, 16, 15840, 600, 960, 56.3, 56.3, 112.6, 112.6, 225.1, 64, kPcie5, kPcie5},
    {"h200", "NVIDIA H200 SXM", "h200 h200141gb h200sxm5",
     90, 132, 141, 143155.9375, 630, 4800, 67, 494, 989, 989, 1979, 50, 450, kPcie5},
    {"gh200", "NVIDIA GH200 96 GB", "gh200480gb gh20096gb",
     90, 132, 96, 96768, 630, 4000, 67, 494, 989, 989, 1979, 50, 450, 450},
    {"h100", "NVIDIA H100 SXM", "h10080gb h10080gbhbm3 h100sxm5 h100sxm80gb",
     90, 132, 80, 81004, 630, 3350, 67, 494, 989, 989, 1979, 50, 450, kPcie5},
    {"h100nvl", "NVIDIA H100 NVL", "h10094gb",
     90, 132, 94, 95345, 630, 3900, 60, 418, 835, 835, 1671, 50, kPcie5, kPcie5},
    {"h100pcie", "NVIDIA H100 PCIe", "h100pcie80gb",
     90, 114, 80, 81004, 630, 2000, 51, 378, 756, 756, 1513, 50, kPcie5, kPcie5},
    {"l40s", "NVIDIA L40S", "l40s48gb",
     89, 142, 48, 45464, 450, 864, 91.6, 183, 362, 362, 733, 96, kPcie4, kPcie4},
    {"l40", "NVIDIA L40", "l4048gb",
     89, 142, 48, 45464, 450, 864, 90.5, 90.5, 181, 181, 362, 96, kPcie4, kPcie4},
    {"l4", "NVIDIA L4", "l424gb",
     89, 58, 24, 22563, 450, 300, 30.3, 60, 121, 121, 242.5, 48, kPcie4, kPcie4},
    {"rtx6000ada", "NVIDIA RTX 6000 Ada Generation", "6000ada rtx6000adageneration",
     89, 142, 48, 48640, 450, 960, 91.1, 182.1, 364.2, 364.2, 728.5, 96, kPcie4, kPcie4},
    {"rtx4090", "NVIDIA GeForce RTX 4090", "4090",
     89, 128, 24, 24210, 450, 1008, 82.6, 82.6, 165.2, 165.2, 330.3, 72, kPcie4, kPcie4},
    {"rtx4080", "NVIDIA GeForce RTX 4080", "4080",
     89, 76, 16, 16076, 450, 716.8, 48.7, 48.7, 97.5, 97.5, 194.9, 64, kPcie4, kPcie4},
    {"rtx4070tisuper", "NVIDIA GeForce RTX 4070 Ti SUPER", "4070tisuper",
     89, 66, 16, 16076, 450, 672, 44.1, 44.1, 88.2, 88.2, 176.4, 48, kPcie4, kPcie4},
    {"rtx4070ti", "NVIDIA GeForce RTX 4070 Ti", "4070ti",
     89, 60, 12, 11994, 450, 504.2, 40.1, 40.1, 80.2, 80.2, 160.4, 48, kPcie4, kPcie4},
    {"a100", "NVIDIA A100 SXM 80 GB", "a10080gb a100sxm480gb a100sxm80gb",
     80, 108, 80, 81050, 500, 2039, 19.5, 156, 312, 312, 0, 40, 300, kPcie4},
    {"a100-40gb", "NVIDIA A100 SXM 40 GB", "a100sxm440gb a100sxm40gb",
     80, 108, 40, 40338, 500, 1555, 19.5, 156, 312, 312, 0, 40, 300, kPcie4},
    {"a100pcie", "NVIDIA A100 PCIe 80 GB", "a10080gbpcie",
     80, 108, 80, 81050, 500, 1935, 19.5, 156, 312, 312, 0, 40, kPcie4, kPcie4},
    {"a100pcie-40gb", "NVIDIA A100 PCIe 40 GB", "a10040gbpcie",
     80, 108, 40, 40338, 500, 1555, 19.5, 156, 312, 312, 0, 40, kPcie4, kPcie4},
    {"a40", "NVIDIA A40", "a4048gb",
     86, 84, 48, 45416, 450, 696, 37.4, 74.8, 149.7, 149.7, 0, 6, kPcie4, kPcie4},
    {"a6000", "NVIDIA RTX A6000", "a600048gb",
     86, 84, 48, 48677, 450, 768, 38.7, 77.4, 154.8, 154.8, 0, 6, kPcie4, kPcie4},
    {"a10", "NVIDIA A10", "a1024gb",
     86, 72, 24, 22592, 450, 600, 31.2, 62.5, 125, 125, 0, 6, kPcie4, kPcie4},
    {"a10g", "NVIDIA A10G", "a10g24gb",
     86, 80, 24, 22723, 450, 600, 31.5, 35, 70, 70, 0, 6, kPcie4, kPcie4},
    {"rtx3090", "NVIDIA GeForce RTX 3090", "3090",
     86, 82, 24, 24260, 450, 936.2, 35.6, 35.6, 71.2, 71.2, 0, 6, kPcie4, kPcie4},
    {"rtx3080", "NVIDIA GeForce RTX 3080 10 GB", "3080",
     86, 68, 10, 10010, 450, 760.3, 29.8, 29.8, 59.5, 59.5, 0, 5, kPcie4, kPcie4},
    {"rtx3080-12gb", "NVIDIA GeForce RTX 3080 12 GB", "308012gb",
     86, 70, 12, 12040, 450, 912.4, 30.6, 30.6, 61.3, 61.3, 0, 6, kPcie4, kPcie4},
    {"rtx3060", "NVIDIA GeForce RTX 3060 12 GB", "3060",
     86, 28, 12, 12040, 450, 360, 12.7, 12.7, 25.5, 25.5, 0, 3, kPcie4, kPcie4},
    {"rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", "2080ti",
     75, 68, 11, 11019, 350, 616, 13.4, 0, 53.8, 0, 0, 5.5, kPcie3, kPcie3},
    {"t4", "NVIDIA T4", "t416gb",
     75, 40, 16, 14931, 350, 320, 8.1, 0, 65, 0, 0, 4, kPcie3, kPcie3},
    {"v100", "NVIDIA V100 SXM2 16 GB", "v10016gb v100sxm2 v100sxm216gb",
     70, 80, 16, 16160, 350, 900, 15.7, 0, 125, 0, 0, 6, 150, kPcie3},
    {"v100-32gb", "NVIDIA V100 SXM2 32 GB", "v100sxm232gb",
     70, 80, 32, 32510, 350, 900, 15.7, 0, 125, 0, 0, 6, 150, kPcie3},
};
// clang-format on

std::int64_t bytes_of(double mib) { return static_cast<std::int64_t>(mib * 1048576.0); }

Card card_of(const Figures& from) {
  Card card;
  card.others = from.others;
  Gpu& gpu = card.gpu;
  gpu.key = from.key;
  gpu.name = from.name;
  gpu.compute_major = from.compute / 10;
  gpu.compute_minor = from.compute % 10;
  gpu.multiprocessors = from.multiprocessors;
  gpu.gigabytes = from.gigabytes;
  gpu.memory = bytes_of(from.memory_mib);
  gpu.context = bytes_of(from.context_mib);
  gpu.bandwidth = from.bandwidth * kGiga;
  gpu.flops = {from.fp32 * kTera, from.tf32 * kTera, from.fp16 * kTera, from.bf16 * kTera, from.fp8 * kTera};
  gpu.cache = bytes_of(from.cache_mib);
  gpu.peer_bandwidth = from.peer * kGiga;
  gpu.host_bandwidth = from.host * kGiga;
  return card;
}

}  // namespace

const std::vector<Card>& cards() {
  static const std::vector<Card> all = [] {
    std::vector<Card> made;
    for (const Figures& each : kFigures) made.push_back(card_of(each));
    return made;
  }();
  return all;
}

const std::vector<Gpu>& known_gpus() {
  static const std::vector<Gpu> all = [] {
    std::vector<Gpu> made;
    for (const Card& each : cards()) made.push_back(each.gpu);
    return made;
  }();
  return all;
}

}  // namespace octavo::plan
