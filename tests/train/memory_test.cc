// Memory by owner: measured peaks, and the message for a user whose device is full.
// SPDX-License-Identifier: MIT
#include "memory.h"

#include "train/parts_support.h"

namespace octavo::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kSlack = 4096;  // small tensors and alignment

torch::Tensor megabytes(std::int64_t count) { return torch::empty({count * kMiB}, torch::kUInt8); }

TEST(PeakMeter, CountsTheMostThatIsHeldAtOnce) {
  const torch::Tensor before = megabytes(16);  // not the meter's
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

std::string explain(const std::string& what, const DeviceMemory& device, const Settings& settings) {
  const std::unique_ptr<Task> task = make_task(settings.task);
  task->build(settings);
  const TaskMemory memory{task->batch_text(settings.training.per_device_train_batch_size),
                          task->memory_advice()};
  return explain_out_of_memory(what, kOwners, device, settings, memory);
}

TEST(OutOfMemory, NamesOwnersAndFragmentation) {
  DeviceMemory device;
  device.peak = 60'000'000'000, device.reserved = 75'000'000'000;
  device.total = 80'000'000'000, device.free = 4'000'000'000;
  const std::string text = explain("tried to allocate 1 GiB", device, settings());
  EXPECT_THAT(text, AllOf(HasSubstr("out of memory: tried to allocate 1 GiB"), HasSubstr("weights 50.6 MB"),
                          HasSubstr("gradients 101 MB"), HasSubstr("optimizer states 51.4 MB"),
                          HasSubstr("master bits 25.3 MB"), HasSubstr("workspace 4.00 MB"),
                          HasSubstr("activations and the rest 9.00 GB"),
                          HasSubstr("a pass had 8 sequences of 512 bytes")));
  EXPECT_THAT(text,
              AllOf(HasSubstr("holds 75.0 GB, of which 15.0 GB is not in use"),
                    HasSubstr("the device has 80.0 GB, 4.00 GB free"), HasSubstr("expandable_segments")));
  ASSERT_EQ(setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True", 1), 0);
  EXPECT_THAT(explain("x", device, settings()), Not(HasSubstr("expandable_segments"))) << "it is on";
  ASSERT_EQ(unsetenv("PYTORCH_CUDA_ALLOC_CONF"), 0);
  device.peak = 74'000'000'000;
  EXPECT_THAT(explain("x", device, settings()), Not(HasSubstr("expandable_segments"))) << "little is loose";
  EXPECT_THAT(explain("x", {}, settings()), Not(HasSubstr("allocator"))) << "the CPU";
}

TEST(OutOfMemory, StatesCanLeaveADevice) {
  DeviceMemory device;
  device.peak = device.reserved = 75'000'000'000;
  EXPECT_THAT(explain("x", device, settings()),
              HasSubstr("offload=stream (76.7 MB of optimizer states and master bits go to host memory)"));
  EXPECT_THAT(explain("x", device, settings({"offload=host"})), Not(HasSubstr("offload=")));
  EXPECT_THAT(explain("x", {}, settings()), Not(HasSubstr("offload="))) << "the CPU";
}

std::string help(const Words& words) { return explain("x", {}, settings(words)); }

TEST(OutOfMemory, NamesOnlySettingsThatWouldHelp) {
  EXPECT_THAT(help({}),
              AllOf(HasSubstr("model.gradient_checkpointing=true"), HasSubstr("data.block_size=256"),
                    HasSubstr("optimizer=adamw_4bit"), Not(HasSubstr("compute_dtype"))));
  EXPECT_THAT(help({"compute_dtype=float32"}), HasSubstr("compute_dtype=bfloat16"));
  EXPECT_THAT(help({"model.gradient_checkpointing=true"}), Not(HasSubstr("gradient_checkpointing")));
  EXPECT_THAT(help({"data.block_size=128"}), Not(HasSubstr("block_size")));
  const std::string least = help(
      {"model.gradient_checkpointing=true", "data.block_size=128", "batch_size=1", "optimizer=adamw_4bit"});
  for (const char* key : {"checkpointing=", "block_size=", "batch_size=", "optimizer=", "dtype="})
    EXPECT_THAT(least, Not(HasSubstr(key)));
  EXPECT_THAT(least, HasSubstr("what would help: a smaller model or a device with more memory"));
}

// The batches that it proposes make the same step.
TEST(OutOfMemory, ProposesTheSameStepInSmallerPasses) {
  EXPECT_THAT(help({"batch_size=8", "gradient_accumulation_steps=3"}),
              HasSubstr("per_device_train_batch_size=4 gradient_accumulation_steps=6"));
  EXPECT_THAT(help({"batch_size=9"}),
              HasSubstr("per_device_train_batch_size=3 gradient_accumulation_steps=3"));
  EXPECT_THAT(help({"batch_size=7", "gradient_accumulation_steps=2"}),
              HasSubstr("per_device_train_batch_size=1 gradient_accumulation_steps=14"));
  EXPECT_THAT(help({"batch_size=1"}), Not(HasSubstr("batch_size=")));
}

// States are made smaller, not another optimizer's.
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
}  // namespace octavo::train
