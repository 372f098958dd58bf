// Tests how a rank is read from environment variables.
// SPDX-License-Identifier: MIT
#include "train/distributed/rank_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<RankInfo> found(const Variables& variables, const Variables& instead = {}) {
  Variables all = variables;
  for (const auto& [name, value] : instead) all[name] = value;
  return rank_from_environment([&](const char* name) -> const char* {
    const auto at = all.find(name);
    return at == all.end() ? nullptr : at->second.c_str();
  });
}

std::string problem(const Variables& variables, const Variables& instead) {
  const Result<RankInfo> rank_info = found(variables, instead);
  return rank_info.ok() ? "no problem" : rank_info.status().message();
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node7"},
                             {"MASTER_PORT", "29500"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_NUM_TASKS", "5"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                          {"SLURM_STEP_NODELIST", "gpu[07-09,12],login"},
                          {"SLURM_JOB_ID", "1234567"},
                          {"SLURM_STEP_ID", "2"}};

TEST(RankInfo, NothingSaysThatAProcessIsAlone) {
  const RankInfo rank_info = *found({});
  EXPECT_FALSE(rank_info.grouped());
  EXPECT_EQ(rank_info.ranks, 1);
  // The shell of an allocation, and a step with one task.
  EXPECT_FALSE(found({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}})->grouped());
  EXPECT_FALSE(found(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}})->grouped());
}

TEST(RankInfo, TorchrunsVariables) {
  const RankInfo rank_info = *found(kTorchrun);
  EXPECT_EQ(rank_info.launcher, RankInfo::Launcher::torchrun);
  EXPECT_EQ(rank_info.rank, 5);
  EXPECT_EQ(rank_info.ranks, 8);
  EXPECT_EQ(rank_info.local_rank, 1);
  EXPECT_EQ(rank_info.local_ranks, 4);
  EXPECT_EQ(rank_info.address, "node7");
  EXPECT_EQ(rank_info.port, 29500);
  EXPECT_FALSE(rank_info.store_is_there);
  EXPECT_FALSE(rank_info.one_machine());
  EXPECT_EQ(rank_info.restart, 0);
  const RankInfo again =
      *found(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "3"}});
  EXPECT_TRUE(again.store_is_there);
  EXPECT_EQ(again.restart, 3);
  const RankInfo own = *found(kTorchrun, {{"OCTAVO_LAUNCHER", "own"}});
  EXPECT_EQ(own.launcher, RankInfo::Launcher::own);
  EXPECT_TRUE(own.store_is_there);
}

TEST(RankInfo, AGroupOfOneIsAGroup) {
  const RankInfo rank_info =
      *found(kTorchrun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
  EXPECT_TRUE(rank_info.grouped());
  EXPECT_TRUE(rank_info.one_machine());
}

// `deepspeed` sets LOCAL_SIZE instead of LOCAL_WORLD_SIZE.
TEST(RankInfo, DeepSpeedsVariables) {
  Variables two = {
      {"RANK", "1"},       {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"},          {"LOCAL_SIZE", "2"},
      {"CROSS_RANK", "0"}, {"CROSS_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  const RankInfo rank_info = *found(two);
  EXPECT_TRUE(rank_info.grouped());
  EXPECT_EQ(rank_info.rank, 1);
  EXPECT_EQ(rank_info.ranks, 2);
  EXPECT_EQ(rank_info.local_rank, 1);
  EXPECT_EQ(rank_info.local_ranks, 2);
  EXPECT_EQ(rank_info.port, 29500);
  EXPECT_FALSE(rank_info.store_is_there);
  EXPECT_EQ(found(two, {{"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}})->local_ranks, 4)
      << "torchrun's counts where both are set";
  EXPECT_THAT(problem(two, {{"LOCAL_SIZE", "x"}}), HasSubstr("LOCAL_SIZE=x is not a number"));
  // One process needs no group.
  EXPECT_FALSE(
      found(two, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_SIZE", "1"}})->grouped());
}

TEST(RankInfo, SlurmsVariables) {
  const RankInfo rank_info = *found(kSlurm);
  EXPECT_EQ(rank_info.launcher, RankInfo::Launcher::slurm);
  EXPECT_EQ(rank_info.rank, 3);
  EXPECT_EQ(rank_info.ranks, 5);
  EXPECT_EQ(rank_info.local_rank, 1);
  EXPECT_EQ(rank_info.local_ranks, 2);
  EXPECT_EQ(rank_info.address, "gpu07");
  EXPECT_EQ(rank_info.port, 24569);
  EXPECT_FALSE(rank_info.store_is_there);
  EXPECT_FALSE(rank_info.one_gpu_each);
  const RankInfo last =
      *found(kSlurm, {{"SLURM_PROCID", "4"}, {"SLURM_NODEID", "2"}, {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(last.local_ranks, 1);
  const RankInfo given =
      *found(kSlurm, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29501"}, {"CUDA_VISIBLE_DEVICES", "3"}});
  EXPECT_EQ(given.address, "10.0.0.1");
  EXPECT_EQ(given.port, 29501);
  EXPECT_TRUE(given.one_gpu_each);
  EXPECT_FALSE(found(kSlurm, {{"CUDA_VISIBLE_DEVICES", "0,1"}})->one_gpu_each);
  EXPECT_EQ(found(kSlurm, {{"SLURM_STEP_NODELIST", "big"}})->address, "big");
  EXPECT_EQ(found(kSlurm, {{"SLURM_STEP_NODELIST", "a1,b2"}})->address, "a1");
  EXPECT_EQ(found(kSlurm, {{"SLURM_STEP_NODELIST", "n[3,5].cluster,x"}})->address, "n3.cluster");
}

TEST(RankInfo, WhatIsWrongIsNamed) {
  EXPECT_THAT(problem(kTorchrun, {{"WORLD_SIZE", ""}}), HasSubstr("WORLD_SIZE is not set, but RANK is"));
  EXPECT_THAT(problem(kTorchrun, {{"MASTER_ADDR", ""}}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(problem(kTorchrun, {{"RANK", "8"}}), HasSubstr("RANK=8 is not a number from 0 to 7"));
  EXPECT_THAT(problem(kTorchrun, {{"RANK", "2x"}}), HasSubstr("RANK=2x"));
  EXPECT_THAT(problem(kTorchrun, {{"LOCAL_RANK", "-1"}}),
              HasSubstr("LOCAL_RANK=-1 is not a number from 0 to 3"));
  EXPECT_THAT(problem(kTorchrun, {{"MASTER_PORT", "70000"}}), HasSubstr("MASTER_PORT=70000"));
  EXPECT_THAT(problem(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4"}}),
              AllOf(HasSubstr("SLURM_STEP_TASKS_PER_NODE=4"), HasSubstr("SLURM_NODEID=1")));
  EXPECT_THAT(problem(kSlurm, {{"SLURM_STEP_NODELIST", ""}}), HasSubstr("SLURM_STEP_NODELIST"));
}

}  // namespace
}  // namespace octavo_train
