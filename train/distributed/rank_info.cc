// SPDX-License-Identifier: MIT
#include "train/distributed/rank_info.h"

#include "train/base/text.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace octavo_train {
namespace {

// Reads environment variables; errors name the variable.
class Variables {
 public:
  Variables(const Environment& environment, std::string why) : of_(environment), why_(std::move(why)) {}

  [[nodiscard]] std::string text(const char* name) const {
    const char* value = of_(name);
    return value == nullptr ? "" : value;
  }

  // Returns a variable's number. After an error it returns `lowest`; status() keeps the first error.
  int number(const char* name, int lowest, int highest, std::optional<int> otherwise = {}) {
    const std::string given = text(name);
    if (given.empty() && otherwise) return *otherwise;
    const std::optional<int> value = parse_number<int>(given);
    if (value && *value >= lowest && *value <= highest) return *value;
    problem(given.empty() ? fmt::format("{} is not set, but {}", name, why_)
                          : fmt::format("{}={} is not a number from {} to {}", name, given, lowest, highest));
    return lowest;
  }

  void problem(const std::string& text) {
    if (status_.ok()) {
      status_ = invalid_error(
          "environment: {}; torchrun, deepspeed, Slurm or num_gpus in the config set all of a rank's "
          "variables",
          text);
    }
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const Environment& of_;
  std::string why_;
  Status status_;
};

constexpr int kMostRanks = 1 << 20;

Result<RankInfo> from_torchrun(const Environment& environment, RankInfo::Launcher launcher) {
  Variables variables(environment, "RANK is");
  RankInfo rank_info;
  rank_info.launcher = launcher;
  rank_info.ranks = variables.number("WORLD_SIZE", 1, kMostRanks);
  rank_info.rank = variables.number("RANK", 0, rank_info.ranks - 1);
  // DeepSpeed's launcher uses the name LOCAL_SIZE.
  const bool is_deepspeed =
      variables.text("LOCAL_WORLD_SIZE").empty() && !variables.text("LOCAL_SIZE").empty();
  rank_info.local_ranks =
      variables.number(is_deepspeed ? "LOCAL_SIZE" : "LOCAL_WORLD_SIZE", 1, rank_info.ranks);
  rank_info.local_rank = variables.number("LOCAL_RANK", 0, rank_info.local_ranks - 1);
  rank_info.port = variables.number("MASTER_PORT", 1, 65535);
  rank_info.restart = variables.number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30, 0);
  rank_info.address = variables.text("MASTER_ADDR");
  if (rank_info.address.empty()) variables.problem("MASTER_ADDR is not set, but RANK is");
  const std::string served = variables.text("TORCHELASTIC_USE_AGENT_STORE");
  rank_info.store_is_there = launcher == RankInfo::Launcher::own || served == "True" || served == "1";
  if (!variables.status().ok()) return variables.status();
  // `deepspeed --num_gpus=1` sets these variables for a single process, which needs no group. With a group,
  // gradients could not be offloaded.
  if (is_deepspeed && rank_info.ranks == 1) return RankInfo{};
  return rank_info;
}

// Returns the number of tasks on node `node` in a list such as "2(x3),1"; 0 if there is no such node.
int tasks_on(std::string_view list, int node) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(item.size() + (item.size() < list.size() ? 1 : 0));
    int tasks = 0, times = 1;
    const char* end = item.data() + item.size();
    const auto [stop, code] = std::from_chars(item.data(), end, tasks);
    if (code != std::errc()) return 0;
    if (end - stop > 2 && stop[0] == '(' && stop[1] == 'x') std::from_chars(stop + 2, end, times);
    if (node < times) return tasks;
    node -= times;
  }
  return 0;
}

// Returns the first host of a list: gpu07 for "gpu[07-09,12],login".
std::string first_host(std::string_view list) {
  const std::size_t open = list.find_first_of("[,");
  if (open == std::string_view::npos || list[open] == ',') return std::string(list.substr(0, open));
  const std::string_view inside = list.substr(open + 1);
  const std::size_t close = inside.find(']');
  const std::string_view after = close == std::string_view::npos ? "" : inside.substr(close + 1);
  return std::string(list.substr(0, open)) + std::string(inside.substr(0, inside.find_first_of("-,]"))) +
         std::string(after.substr(0, after.find(',')));
}

Result<RankInfo> from_slurm(const Environment& environment) {
  Variables variables(environment, "SLURM_PROCID is");
  RankInfo rank_info;
  rank_info.launcher = RankInfo::Launcher::slurm;
  rank_info.ranks = variables.number("SLURM_STEP_NUM_TASKS", 1, kMostRanks);
  rank_info.rank = variables.number("SLURM_PROCID", 0, rank_info.ranks - 1);
  const int node = variables.number("SLURM_NODEID", 0, kMostRanks);
  const std::string tasks = variables.text("SLURM_STEP_TASKS_PER_NODE");
  rank_info.local_ranks = tasks_on(tasks, node);
  if (rank_info.local_ranks < 1) {
    variables.problem(
        fmt::format("SLURM_STEP_TASKS_PER_NODE={} has no tasks for SLURM_NODEID={}", tasks, node));
    rank_info.local_ranks = 1;
  }
  rank_info.local_rank = variables.number("SLURM_LOCALID", 0, rank_info.local_ranks - 1);
  rank_info.restart = variables.number("SLURM_RESTART_COUNT", 0, 1 << 30, 0);
  rank_info.address = variables.text("MASTER_ADDR");
  if (rank_info.address.empty()) rank_info.address = first_host(variables.text("SLURM_STEP_NODELIST"));
  if (rank_info.address.empty()) variables.problem("neither MASTER_ADDR nor SLURM_STEP_NODELIST is set");
  // Jobs that share a machine, and the steps of one job, must not share a store.
  const int job = variables.number("SLURM_JOB_ID", 0, 2147483647, 0);
  const int step = variables.number("SLURM_STEP_ID", 0, 2147483647, 0);
  rank_info.port = variables.number("MASTER_PORT", 1, 65535, 20000 + (job % 10000 + step % 10000) % 10000);
  // With --gpus-per-task each rank sees only one GPU, with index 0.
  const std::string seen = variables.text("CUDA_VISIBLE_DEVICES");
  rank_info.one_gpu_each = rank_info.local_ranks > 1 && !seen.empty() && seen.find(',') == std::string::npos;
  if (!variables.status().ok()) return variables.status();
  return rank_info;
}

bool is_set(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value != nullptr && *value != '\0';
}

}  // namespace

Result<RankInfo> rank_from_environment(const Environment& environment) {
  if (is_set(environment, "OCTAVO_LAUNCHER")) return from_torchrun(environment, RankInfo::Launcher::own);
  if (is_set(environment, "RANK")) return from_torchrun(environment, RankInfo::Launcher::torchrun);
  // The shell of an allocation has SLURM_PROCID too. Only a step with several tasks is a run of several
  // ranks.
  const char* tasks = environment("SLURM_STEP_NUM_TASKS");
  if (is_set(environment, "SLURM_PROCID") && tasks != nullptr && std::strcmp(tasks, "1") != 0 && *tasks != 0)
    return from_slurm(environment);
  return RankInfo{};
}

}  // namespace octavo_train
