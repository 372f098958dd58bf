// Tests the check of a config's ranks and devices against the available ones.
// SPDX-License-Identifier: MIT
#include "train/device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <octavo/backend.h>
#include <stdlib.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <map>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Config config_of(const std::string& device, std::optional<std::int64_t> gpus) {
  Config config = parse("training:\n  device: " + device + "\n", "run.yaml").value();
  config.settings.training.num_gpus = gpus;
  return config;
}

// Sets torchrun's environment variables during its lifetime.
class Started {
 public:
  Started(int ranks, int local_ranks)
      : variables_{{"RANK", "0"},
                   {"WORLD_SIZE", std::to_string(ranks)},
                   {"LOCAL_RANK", "0"},
                   {"LOCAL_WORLD_SIZE", std::to_string(local_ranks)},
                   {"MASTER_ADDR", "localhost"},
                   {"MASTER_PORT", "29500"}} {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Started() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;

 private:
  std::map<std::string, std::string> variables_;
};

TEST(RankDevice, TheCommandStartsRanksOnlyWhereNobodyElseHas) {
  EXPECT_TRUE(starts_ranks(config_of("cpu", 2), rank_info_of(config_of("cpu", 2)).value()));
  EXPECT_FALSE(starts_ranks(config_of("cpu", 1), RankInfo{}));
  EXPECT_FALSE(starts_ranks(config_of("cpu", {}), RankInfo{}));
  const Started started(2, 2);
  EXPECT_FALSE(starts_ranks(config_of("cpu", 2), rank_info_of(config_of("cpu", 2)).value()));
}

// A GPU that this build has no kernels for is refused, whatever the optimizer: the error names the fix.
TEST(RankDevice, AGpuWithoutKernelsIsAnError) {
  EXPECT_TRUE(check_backend(torch::kCPU).ok());
  const Status status = check_backend(torch::Device(torch::kCUDA, 63));
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("training.device: cuda:63 cannot train: "), HasSubstr("device: cpu")));
  if (!octavo::has_cuda()) {
    EXPECT_THAT(status.message(), HasSubstr("this build of octavo has no CUDA code; build octavo with CUDA"));
  }
}

TEST(RankDevice, ANumberThatIsNotTheLaunchersIsAnError) {
  const Started started(8, 4);
  for (const std::optional<std::int64_t> fine : {std::optional<std::int64_t>(), {4}, {8}})
    EXPECT_TRUE(rank_info_of(config_of("cpu", fine)).ok());
  const auto rank_info = rank_info_of(config_of("cpu", 2));
  ASSERT_FALSE(rank_info.ok());
  EXPECT_THAT(rank_info.status().message(),
              HasSubstr("training.num_gpus: got 2, but 8 ranks were started, 4 of them on this machine"));
}

TEST(RankDevice, ANamedGpuIsAnErrorForSeveralRanks) {
  const auto message = HasSubstr("training.device: got cuda:1, but the run has several ranks");
  EXPECT_THAT(can_start_ranks(config_of("cuda:1", 2)).message(), message);
  const Started started(2, 2);
  const Config config = config_of("cuda:1", {});
  EXPECT_THAT(rank_device(config, rank_info_of(config).value()).status().message(),
              AllOf(message, HasSubstr("run.yaml:2")));
}

TEST(RankDevice, MoreRanksThanGpusAreAnError) {
  const auto gpus = torch::cuda::is_available() ? static_cast<std::int64_t>(torch::cuda::device_count()) : 0;
  const std::string asked = can_start_ranks(config_of("cuda", gpus + 1)).message();
  EXPECT_THAT(asked, gpus == 0 ? HasSubstr("this LibTorch sees no CUDA device")
                               : HasSubstr("but there are " + std::to_string(gpus)));
  EXPECT_EQ(can_start_ranks(config_of("auto", gpus + 1)).ok(), gpus == 0);
}

// `num_gpus` requests GPUs: a run must not train on the CPU for days because a driver is missing.
TEST(RankDevice, SeveralGpusWhereThereIsNoneAreAnError) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "this machine has a GPU";
  const Config config = config_of("auto", 2);
  const auto message = AllOf(HasSubstr("training.num_gpus: got 2, but this LibTorch sees no GPU"),
                             HasSubstr("use num_gpus: 1, or device: cpu to train in 2 processes on the CPU"));
  EXPECT_THAT(can_start_ranks(config).message(), message);
  EXPECT_TRUE(can_start_ranks(config_of("cpu", 2)).ok());
  const Started started(2, 2);
  EXPECT_THAT(rank_device(config, rank_info_of(config).value()).status().message(), message);
  EXPECT_TRUE(rank_device(config_of("auto", {}), rank_info_of(config).value())->is_cpu());
}

TEST(RankDevice, ACpuHasAProcessorForEachRank) {
  const std::int64_t processors = std::max<std::int64_t>(sysconf(_SC_NPROCESSORS_ONLN), 2);
  EXPECT_TRUE(can_start_ranks(config_of("cpu", processors)).ok());
  const std::string limit = std::to_string(processors);
  EXPECT_THAT(can_start_ranks(config_of("cpu", 65536)).message(),
              AllOf(HasSubstr("training.num_gpus: got 65536"), HasSubstr("the limit is " + limit + " ranks"),
                    HasSubstr("use num_gpus: " + limit + " or fewer")));
}

TEST(RankDevice, EachRankHasItsOwn) {
  RankInfo rank_info;
  rank_info.launcher = RankInfo::Launcher::torchrun;
  rank_info.ranks = rank_info.local_ranks = 2;
  rank_info.rank = rank_info.local_rank = 1;
  EXPECT_TRUE(rank_device(config_of("cpu", {}), rank_info)->is_cpu());
  if (!torch::cuda::is_available()) {
    EXPECT_TRUE(rank_device(config_of("auto", {}), rank_info)->is_cpu());
  }
}

}  // namespace
}  // namespace octavo_train
