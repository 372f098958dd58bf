// Tests ProcessGroup's guarantees on gloo.
// SPDX-License-Identifier: MIT
#include "tests/ranks/ranks.h"
#include "train/distributed/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

namespace octavo_train::ranks {
namespace {

using octavo_train::ProcessGroupError;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

torch::Tensor counted(std::int64_t count, torch::ScalarType type = torch::kFloat32) {
  return torch::arange(count, torch::TensorOptions().dtype(type));
}

// Returns 1 + 2 + ... + ranks.
int triangle(const ProcessGroup& process_group) {
  return process_group.ranks() * (process_group.ranks() + 1) / 2;
}

}  // namespace

RANKS_TEST(every_rank_has_its_place, 2, 3, 4) {
  EXPECT_TRUE(process_group.grouped());
  EXPECT_EQ(process_group.leads(), process_group.rank() == 0);
  const auto all = process_group.gather(std::to_string(process_group.rank()));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(process_group.ranks()));
  for (int rank = 0; rank < process_group.ranks(); ++rank) EXPECT_EQ(all[rank], std::to_string(rank));
}

RANKS_TEST(tensors_are_reduced, 2, 3, 4) {
  for (const auto type :
       {torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kFloat16, torch::kInt64}) {
    torch::Tensor sum = counted(37, type) * (process_group.rank() + 1), max = sum.clone();
    octavo_train::Pending first = process_group.all_reduce(sum),
                          second = process_group.all_reduce(max, ProcessGroup::Reduce::max);
    second.wait();
    first.wait();
    first.wait();
    EXPECT_TRUE(torch::equal(sum, counted(37, type) * triangle(process_group))) << type;
    EXPECT_TRUE(torch::equal(max, counted(37, type) * process_group.ranks())) << type;
  }
}

RANKS_TEST(parts_are_reduced_and_gathered_in_place, 2, 3, 4) {
  const std::int64_t part = 5, begin = part * process_group.rank();
  torch::Tensor whole = counted(part * process_group.ranks()) * (process_group.rank() + 1);
  process_group.reduce_scatter(whole.narrow(0, begin, part), whole).wait();
  const torch::Tensor mine = (counted(part) + begin) * triangle(process_group);
  EXPECT_TRUE(torch::equal(whole.narrow(0, begin, part), mine));
  torch::Tensor apart = torch::empty({part});
  process_group.reduce_scatter(apart, counted(part * process_group.ranks()) * (process_group.rank() + 1))
      .wait();
  EXPECT_TRUE(torch::equal(apart, mine));
  whole.zero_().narrow(0, begin, part).fill_(process_group.rank());
  process_group.all_gather(whole, whole.narrow(0, begin, part)).wait();
  EXPECT_TRUE(
      torch::equal(whole, torch::arange(process_group.ranks()).repeat_interleave(part).to(torch::kFloat32)));
}

RANKS_TEST(one_rank_gets_or_gives, 2, 3) {
  for (int root = 0; root < process_group.ranks(); ++root) {
    torch::Tensor sum = counted(9) * (process_group.rank() + 1), given = counted(9) + process_group.rank();
    process_group.reduce(sum, root).wait();
    process_group.broadcast(given, root).wait();
    if (process_group.rank() == root) {
      EXPECT_TRUE(torch::equal(sum, counted(9) * triangle(process_group)));
    }
    EXPECT_TRUE(torch::equal(given, counted(9) + root));
  }
}

RANKS_TEST(hosts_sum_in_the_order_of_ranks, 3, 4) {
  const double values[] = {1e17, 1.0, -1e17, 3.0};
  double in_order = 0;
  for (int rank = 0; rank < process_group.ranks(); ++rank) in_order += values[rank];
  std::vector<double> sums(100, values[process_group.rank()]);
  process_group.sum(sums);
  EXPECT_THAT(sums, testing::Each(in_order));
  std::int64_t most[] = {process_group.rank(), -process_group.rank()};
  process_group.max(most);
  EXPECT_THAT(most, testing::ElementsAre(process_group.ranks() - 1, 0));
}

RANKS_TEST(texts_of_any_length_arrive, 2, 3) {
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{231}, std::size_t{233}, std::size_t{100'000}}) {
    const std::string text(length, static_cast<char>('a' + process_group.rank()));
    const auto all = process_group.gather(process_group.rank() == 1 ? text : text + "\n");
    EXPECT_EQ(all[0], std::string(length, 'a') + "\n");
    EXPECT_EQ(all[1], std::string(length, 'b'));
    EXPECT_EQ(process_group.broadcast_text(text), std::string(length, 'a'));
  }
}

RANKS_TEST(all_ranks_get_the_first_error, 2, 3) {
  EXPECT_TRUE(process_group.first_error({}).ok());
  const Status mine = process_group.rank() == 0
                          ? Status()
                          : Status::unsupported("no " + std::to_string(process_group.rank()));
  const Status all = process_group.first_error(mine);
  EXPECT_EQ(all.code(), StatusCode::unsupported);
  EXPECT_EQ(all.message(), "rank 1: no 1");
}

RANKS_TEST(bytes_of_traffic_follow_the_algorithm, 2, 4) {
  (void)process_group.take_traffic();
  const std::int64_t ranks = process_group.ranks();
  torch::Tensor whole = torch::zeros({ranks * 100});
  process_group.all_reduce(whole).wait();
  EXPECT_EQ(process_group.take_traffic().bytes, 2 * (ranks - 1) * 400);
  process_group.reduce_scatter(whole.narrow(0, process_group.rank() * 100, 100), whole).wait();
  EXPECT_EQ(process_group.take_traffic().bytes, (ranks - 1) * 400);
}

RANKS_TEST(a_tensor_that_gloo_gets_wrong_is_refused, 2) {
  EXPECT_THROW(process_group.all_reduce(torch::zeros({4, 4}).t()), c10::Error);
  EXPECT_THROW(process_group.reduce_scatter(torch::zeros({3}), torch::zeros({7})), c10::Error);
}

RANKS_TEST(worlds_follow_each_other, 2) {
  const std::unique_ptr<ProcessGroup> another = join_here();
  torch::Tensor sum = torch::ones({3});
  another->all_reduce(sum).wait();
  EXPECT_EQ(sum.sum().item<float>(), 6.0F);
}

namespace {

// Returns the addresses at which this process listens, as the kernel writes them.
std::set<std::string> listening() {
  std::set<std::string> own, found;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(each.path(), gone).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  for (const char* file : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream in(file);
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::vector<std::string> fields(10);
      for (std::string& field : fields) words >> field;
      if (fields[3] == "0A" && own.count(fields[9]) != 0)
        found.insert(fields[1].substr(0, fields[1].find(':')));
    }
  }
  return found;
}

// Returns an address of this machine other than loopback, or an empty string if there is none.
std::string outer_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::string found;
  for (const ifaddrs* each = list; each != nullptr && found.empty(); each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char text[NI_MAXHOST] = {};
    getnameinfo(each->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    if (!std::string(text).starts_with("127.")) found = text;
  }
  freeifaddrs(list);
  return found;
}

}  // namespace

RANKS_TEST(nothing_listens_but_on_loopback, 2) { EXPECT_THAT(listening(), testing::ElementsAre("0100007F")); }

RANKS_PROGRAM(serves) {
  const auto joined = ProcessGroup::join(place_here(), torch::kCPU, {.timeout = kPatience});
  if (!joined.ok()) throw std::runtime_error(joined.status().message());
  double ranks[] = {1};
  (*joined)->sum(ranks);
  std::cout << ranks[0] << " ranks";
  for (const std::string& each : listening()) std::cout << " at " << each;
  std::cout << std::endl;
  return 0;
}

// Ranks start as under torchrun or Slurm, without a store from the launcher.
TEST(ProcessGroup, RankZeroServesTheStoreWhereNobodyElseDoes) {
  const int port = [] { return octavo_train::serve_store("127.0.0.1", 0).value().port; }();
  for (const Ended& each : Processes({.program = "serves",
                           .environment = {{"OCTAVO_LAUNCHER", ""},
                                           {"MASTER_ADDR", "localhost"},
                                           {"MASTER_PORT", std::to_string(port)}}})
                               .wait()) {
    EXPECT_EQ(each.output, "2 ranks at 0100007F\n");
    EXPECT_EQ(each.code, 0);
  }
}

// Each rank believes that it is on a separate machine.
TEST(ProcessGroup, RanksOfSeveralMachinesMeetAtTheMastersAddress) {
  const std::string address = outer_address();
  if (address.empty()) GTEST_SKIP() << "this machine has no interface but loopback";
  const int port = [&] { return octavo_train::serve_store(address, 0).value().port; }();
  for (const Ended& each : Processes({.program = "serves",
                           .environment = {{"OCTAVO_LAUNCHER", ""},
                                           {"LOCAL_RANK", "0"},
                                           {"LOCAL_WORLD_SIZE", "1"},
                                           {"MASTER_ADDR", address},
                                           {"MASTER_PORT", std::to_string(port)}}})
                               .wait()) {
    EXPECT_THAT(each.output,
                AllOf(HasSubstr("2 ranks at "), Not(HasSubstr("0100007F")), Not(HasSubstr("00000000"))));
    EXPECT_EQ(each.code, 0);
  }
}

TEST(ProcessGroup, APortInUseIsRankZerosError) {
  const octavo_train::ServedStore other = octavo_train::serve_store("127.0.0.1", 0).value();
  const Ended ended = Processes({.program = "serves",
                                 .ranks = 1,
                                 .environment = {{"OCTAVO_LAUNCHER", ""},
                                                 {"WORLD_SIZE", "2"},
                                                 {"LOCAL_WORLD_SIZE", "2"},
                                                 {"MASTER_PORT", std::to_string(other.port)}}})
                          .wait()
                          .at(0);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.output, HasSubstr("port " + std::to_string(other.port) + ": the port is in use"));
}

RANKS_PROGRAM(differ_in_size) {
  const std::unique_ptr<ProcessGroup> process_group = join_here();
  process_group->broadcast(torch::ones({4}), 0).wait();
  torch::Tensor some = torch::ones({process_group->rank() == 0 ? 4 : 8});
  process_group->broadcast(some, process_group->rank());
  process_group->gather("");
  return 0;
}

TEST(ProcessGroup, RanksThatCallSomethingElseAreNamed) {
  for (const Ended& ended : Processes({.program = "differ_in_size"}).wait()) {
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.output,
                HasSubstr("ranks are out of step: rank 0 is in broadcast of 4 Float from rank 0, "
                          "rank 1 is in broadcast of 8 Float from rank 1"));
  }
}

TEST(ProcessGroup, AloneAnswersAtOnce) {
  const std::unique_ptr<ProcessGroup> process_group = ProcessGroup::alone();
  EXPECT_FALSE(process_group->grouped());
  torch::Tensor tensor = counted(4);
  process_group->all_reduce(tensor).wait();
  torch::Tensor part = torch::empty({4});
  process_group->reduce_scatter(part, tensor).wait();
  EXPECT_TRUE(torch::equal(part, counted(4)));
  double value[] = {-0.5};
  process_group->sum(value);
  EXPECT_EQ(value[0], -0.5);
  EXPECT_EQ(process_group->first_error(Status::failed("mine")).message(), "mine");
  EXPECT_EQ(process_group->broadcast_text("text"), "text");
}

}  // namespace octavo_train::ranks
