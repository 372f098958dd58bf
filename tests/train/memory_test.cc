// Tests memory by owner: measured peaks, and the message for a user whose device is full.
// SPDX-License-Identifier: MIT
#include "train/device/memory.h"

#include "tests/train/parts_support.h"
#include "train/predict/advise.h"

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kSlack = 4096;  // small tensors and alignment

torch::Tensor megabytes(std::int64_t count) { return torch::empty({count * kMiB}, torch::kUInt8); }

TEST(PeakMeter, CountsTheMostThatIsHeldAtOnce) {
  const torch::Tensor before = megabytes(16);  // allocated before the meter
  const PeakMeter meter(torch::kCPU);
  EXPECT_EQ(meter.bytes(), 0);
  { const torch::Tensor a = megabytes(3), b = megabytes(2); }
  const torch::Tensor c = megabytes(4);
  EXPECT_GE(meter.bytes(), 5 * kMiB);
  EXPECT_LE(meter.bytes(), 5 * kMiB + kSlack);
  const torch::Tensor d = megabytes(4);
  EXPECT_GE(meter.bytes(), 8 * kMiB);
  EXPECT_LE(meter.bytes(), 8 * kMiB + kSlack);
}

TEST(PeakMeter, RestartsForEachPart) {
  PeakMeter meter(torch::kCPU);
  const torch::Tensor kept = megabytes(1);
  { const torch::Tensor a = megabytes(3); }
  EXPECT_GE(meter.bytes(), 4 * kMiB);
  EXPECT_GE(meter.now(), kMiB);
  EXPECT_LE(meter.now(), kMiB + kSlack);
  meter.restart();
  EXPECT_LE(meter.bytes(), kMiB + kSlack) << "what is held still counts, what was does not";
  { const torch::Tensor b = megabytes(1); }
  EXPECT_GE(meter.bytes(), 2 * kMiB);
  EXPECT_LE(meter.bytes(), 2 * kMiB + kSlack);
}

TEST(PeakMeter, CountsInsideABackwardPass) {
  const torch::Tensor x = torch::ones({kMiB}).requires_grad_();  // 4 MiB
  torch::Tensor kept;
  const torch::Tensor y = x.sum();
  y.register_hook([&](const torch::Tensor& grad) {
    kept = megabytes(32);
    return grad;
  });
  const PeakMeter meter(torch::kCPU);
  y.backward();
  EXPECT_GE(meter.bytes(), (32 + 4) * kMiB) << "the hook's and the gradient's";
  EXPECT_LE(meter.bytes(), (32 + 8) * kMiB + kSlack);
}

TEST(PeakMeter, EndsWithItsScope) {
  const PeakMeter outer(torch::kCPU);
  {
    const PeakMeter inner(torch::kCPU);
    const torch::Tensor a = megabytes(2);
    EXPECT_GE(inner.bytes(), 2 * kMiB);
  }
  const torch::Tensor b = megabytes(1);
  EXPECT_GE(outer.bytes(), kMiB) << "counts again";
}

TEST(Memory, OfTheHostIsKnown) {
  const std::int64_t before = host_memory();
  ASSERT_GT(before, 0);
  const torch::Tensor touched = torch::ones({64 * kMiB}, torch::kUInt8);
  EXPECT_GE(host_memory() - before, 48 * kMiB) << "of 64 MiB, some of which may have been there";
}

TEST(Memory, TheTableHasEveryOwnerAndTheirSum) {
  const MemoryByOwner owners{10'000'000, 20'000'000, 30'000'000, 5'000'000, 1'000'000, 34'000'000};
  EXPECT_EQ(owners.peak(), 100'000'000);
  const std::vector<std::string> table = memory_table(owners);
  ASSERT_EQ(table.size(), 7U);
  EXPECT_THAT(table[0], AllOf(HasSubstr("weights"), HasSubstr("10.0 MB"), HasSubstr(" 10.0%")));
  EXPECT_THAT(table[5], AllOf(HasSubstr("activations"), HasSubstr("34.0 MB"), HasSubstr(" 34.0%")));
  EXPECT_THAT(table[6], AllOf(HasSubstr("peak"), HasSubstr("100 MB"), HasSubstr("100.0%")));
  for (const std::string& line : table) EXPECT_EQ(line.size(), table[0].size()) << line;
  EXPECT_EQ(memory_table({}).size(), 7U);
  MemoryByOwner of_a_rank = owners;
  of_a_rank.communication = 25'000'000;
  ASSERT_EQ(memory_table(of_a_rank).size(), 8U);
  EXPECT_THAT(memory_table(of_a_rank)[5], AllOf(HasSubstr("communication"), HasSubstr("25.0 MB")));
  EXPECT_EQ(of_a_rank.peak(), 125'000'000);
  MemoryByOwner offloaded = owners;
  offloaded.host_states = 7'000'000, offloaded.host_copies = 2'000'000;
  EXPECT_EQ(offloaded.peak(), 100'000'000) << "not of the device";
  EXPECT_EQ(
      memory_table(offloaded).back(),
      "  in host memory: 7.00 MB of optimizer states, 0 B of master bits, 2.00 MB of copies of weights and "
      "gradients");
}

const MemoryByOwner kOwners{50'600'000, 101'200'000, 51'400'000, 25'300'000, 4'000'000, 9'000'000'000};

std::string explain(const std::string& what, const DeviceMemory& device) {
  return explain_out_of_memory(what, kOwners, device, {"8 sequences of 512 bytes", {"a=1 (why)", "b=2"}});
}

TEST(OutOfMemory, NamesOwnersAndFragmentation) {
  DeviceMemory device;
  device.peak = 60'000'000'000, device.reserved = 75'000'000'000;
  device.total = 80'000'000'000, device.free = 4'000'000'000;
  const std::string text = explain("tried to allocate 1 GiB", device);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("out of memory: tried to allocate 1 GiB"), HasSubstr("weights 50.6 MB"),
            HasSubstr("gradients 101 MB"), HasSubstr("optimizer states 51.4 MB"),
            HasSubstr("master bits 25.3 MB"), HasSubstr("workspace 4.00 MB"),
            HasSubstr("activations and the rest 9.00 GB"),
            HasSubstr("the micro-batch had 8 sequences of 512 bytes\n  what would help:\n    a=1 (why)\n"
                      "    b=2\n    the environment variable ")));
  EXPECT_THAT(text,
              AllOf(HasSubstr("holds 75.0 GB, of which 15.0 GB is not in use"),
                    HasSubstr("the device has 80.0 GB, 4.00 GB free"), HasSubstr("expandable_segments")));
  ASSERT_EQ(setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True", 1), 0);
  EXPECT_THAT(explain("x", device), Not(HasSubstr("expandable_segments"))) << "it is on";
  ASSERT_EQ(unsetenv("PYTORCH_CUDA_ALLOC_CONF"), 0);
  device.peak = 74'000'000'000;
  EXPECT_THAT(explain("x", device), Not(HasSubstr("expandable_segments"))) << "little is loose";
  EXPECT_THAT(explain("x", {}), Not(HasSubstr("allocator"))) << "the CPU";
}

// Returns the proposals without a prediction: their order is fixed, and they have no numbers.
std::vector<std::string> helps(const Words& words, bool gpu = true, bool evaluating = false) {
  const Settings all = settings(words);
  const std::unique_ptr<Task> task = make_task(all.task);
  task->build(all);
  FullDevice full{all, *task};
  full.gpu = full.fp8 = gpu;
  full.evaluating = evaluating;
  std::vector<std::string> out = memory_help(full);
  for (const std::string& last : task->text().memory_advice) out.push_back(last);
  return out;
}

std::string help(const Words& words) {
  std::string out;
  for (const std::string& line : helps(words)) out += line + '\n';
  return out;
}

TEST(OutOfMemory, HalfTheBatchComesFirstAndShorterSamplesLast) {
  const char* const half =
      "per_device_train_batch_size=4 gradient_accumulation_steps=2 (the same step in micro-batches of 1/2; "
      "fp32 sums of gradients add 4 bytes a parameter)";
  const char* const checkpointing =
      "model.gradient_checkpointing=true (activations of one layer instead of all, computed again)";
  const char* const states = "optimizer=adamw_4bit (1.06 bytes of state per weight instead of 2.03)";
  const char* const master = "master_weights=stochastic (no master bits; weights are rounded stochastically)";
  const char* const shorter =
      "data.block_size=256 (another experiment: the model sees half of the text before a byte)";
  EXPECT_THAT(
      helps({}),
      ElementsAre(
          half, checkpointing, "fp8.enabled=true (activations of FP8 matmuls are stored in FP8)",
          "offload=stream (states in host memory, brought through the GPU)",
          "offload=host offload_gradients=true (states and gradients in host memory, updated by the CPU)",
          states, master, shorter));
  EXPECT_THAT(helps({}, /*gpu=*/false), ElementsAre(half, checkpointing, states, master, shorter));
  EXPECT_THAT(
      helps({"per_device_eval_batch_size=6"}, /*gpu=*/false, /*evaluating=*/true),
      ElementsAre("per_device_eval_batch_size=3 (evaluations in smaller batches)", states, master, shorter));
  EXPECT_THAT(helps({"per_device_eval_batch_size=1"}, /*gpu=*/false, /*evaluating=*/true),
              ElementsAre(states, master, shorter));
}

TEST(OutOfMemory, NamesOnlySettingsThatWouldHelp) {
  EXPECT_THAT(help({}), Not(HasSubstr("compute_dtype")));
  EXPECT_THAT(help({"compute_dtype=float32"}),
              AllOf(HasSubstr("compute_dtype=bfloat16"), Not(HasSubstr("fp8"))));
  EXPECT_THAT(help({"model.gradient_checkpointing=true"}), Not(HasSubstr("gradient_checkpointing")));
  EXPECT_THAT(help({"offload=host"}), Not(HasSubstr("offload=")));
  EXPECT_THAT(help({"data.block_size=128"}), Not(HasSubstr("block_size")));
  EXPECT_THAT(helps({"model.gradient_checkpointing=true", "data.block_size=128", "batch_size=1",
                     "optimizer=adamw_4bit", "compute_dtype=float16"},
                    /*gpu=*/false),
              ElementsAre());
  EXPECT_THAT(explain_out_of_memory("x", kOwners, {}, {"1 sequence", {}}),
              HasSubstr("what would help: a smaller model or a device with more memory"));
}

// The proposed batch sizes make the same step. fp32 sums of gradients already exist if there was
// accumulation, and fp32 weights need none.
TEST(OutOfMemory, ProposesTheSameStepInSmallerMicroBatches) {
  EXPECT_EQ(
      helps({"batch_size=8", "gradient_accumulation_steps=6"}).front(),
      "per_device_train_batch_size=4 gradient_accumulation_steps=12 (the same step in micro-batches of 1/2)");
  EXPECT_EQ(
      helps({"batch_size=8", "compute_dtype=float32"}).front(),
      "per_device_train_batch_size=4 gradient_accumulation_steps=2 (the same step in micro-batches of 1/2)");
  EXPECT_THAT(help({"batch_size=9"}),
              HasSubstr("per_device_train_batch_size=3 gradient_accumulation_steps=3 (the same step in "
                        "micro-batches of 1/3"));
  EXPECT_THAT(help({"batch_size=7", "gradient_accumulation_steps=2"}),
              HasSubstr("per_device_train_batch_size=1 gradient_accumulation_steps=14"));
  EXPECT_THAT(help({"batch_size=8", "global_batch_size=32"}),
              HasSubstr("per_device_train_batch_size=4 (the same step"));
  EXPECT_THAT(help({"batch_size=1"}), Not(HasSubstr("batch_size=")));
}

// Proposes smaller states, but not another algorithm.
TEST(OutOfMemory, KeepsTheAlgorithm) {
  EXPECT_THAT(help({"optimizer=adamw"}),
              HasSubstr("optimizer=adamw_8bit (2.03 bytes of state per weight instead of 8)"));
  EXPECT_THAT(help({"optimizer=adamw_bf16"}),
              HasSubstr("optimizer=adamw_8bit (2.03 bytes of state per weight instead of 4)"));
  EXPECT_THAT(help({"optimizer=adamw_8bit"}),
              HasSubstr("optimizer=adamw_4bit (1.06 bytes of state per weight instead of 2.03)"));
  EXPECT_THAT(help({"optimizer=lion"}),
              HasSubstr("optimizer=lion_8bit (1.02 bytes of state per weight instead of 4)"));
  EXPECT_THAT(help({"optimizer=sgd_8bit"}),
              HasSubstr("optimizer=sgd_4bit (0.531 bytes of state per weight instead of 1.02)"));
  EXPECT_THAT(help({"optimizer=sgd", "momentum=0"}), Not(HasSubstr("optimizer="))) << "it has no states";
}

}  // namespace
}  // namespace octavo_train
