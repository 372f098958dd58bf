// Tests the log of a run: the content of each line, the lines that a resumed run drops, and TensorBoard's
// event files, decoded by a separate reader that checks every checksum.
// SPDX-License-Identifier: MIT
#include "train/log/run_log.h"

#include "tests/train/event_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string pattern = (fs::temp_directory_path() / "octavo_run_log_XXXXXX").string();
    std::vector<char> name(pattern.begin(), pattern.end());
    name.push_back('\0');
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name.data();
    folder_ = root_ / "runs" / "first";
  }
  void TearDown() override { fs::remove_all(root_); }

  RunLog open(std::int64_t resume_step) {
    auto log = RunLog::open(folder_.string(), resume_step);
    EXPECT_TRUE(log.ok()) << log.status().message();
    return std::move(log).value();
  }

  std::vector<json> records(const std::string& name = "metrics.jsonl") const {
    std::vector<json> out;
    std::ifstream in(folder_ / name);
    for (std::string line; std::getline(in, line);) out.push_back(json::parse(line));
    return out;
  }
  std::vector<std::int64_t> steps(const std::string& name = "metrics.jsonl") const {
    std::vector<std::int64_t> out;
    for (const json& record : records(name)) out.push_back(record.at("step").get<std::int64_t>());
    return out;
  }
  void append_raw(std::string_view text) const {
    std::ofstream(folder_ / "metrics.jsonl", std::ios::app | std::ios::binary) << text;
  }
  std::vector<fs::path> event_files() const {  // in the order in which TensorBoard reads them
    std::set<fs::path> out;
    for (const auto& each : fs::directory_iterator(folder_))
      if (each.path().filename().string().starts_with("events.out.tfevents.")) out.insert(each.path());
    return {out.begin(), out.end()};
  }

  fs::path root_, folder_;
};

void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

json train_record(std::int64_t step, double loss = 3.0) {
  return {{"kind", "train"}, {"step", step}, {"loss", loss}};
}

TEST_F(RunLogTest, WritesOneLinePerRecordWithTheTimeFirst) {
  RunLog log = open(0);
  expect_ok(log.write({{"kind", "start"}, {"step", 0}, {"model", "bdh"}}));
  expect_ok(log.write(train_record(10)));
  expect_ok(log.flush());
  const auto lines = records();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].begin().key(), "time");
  EXPECT_GT(lines[0].at("time").get<double>(), 1.6e9);
  EXPECT_EQ(lines[0].at("model"), "bdh");
  EXPECT_EQ(lines[1].at("loss"), 3.0);
}

TEST_F(RunLogTest, LinesAreThereBeforeTheLogIsClosed) {
  RunLog log = open(0);
  for (std::int64_t step = 1; step <= 3; ++step) {
    expect_ok(log.write(train_record(step)));
    EXPECT_EQ(steps().size(), static_cast<std::size_t>(step));
  }
}

TEST_F(RunLogTest, NumbersThatAreNotFiniteBecomeNullAndStayInTensorBoard) {
  RunLog log = open(0);
  json record = train_record(1, std::nan(""));
  record["grad_norm"] = std::numeric_limits<double>::infinity();
  record["lr"] = 1e300;  // finite, but too large for a float
  expect_ok(log.write(record));
  const json line = records().at(0);
  EXPECT_TRUE(line.at("loss").is_null());
  EXPECT_TRUE(line.at("grad_norm").is_null());
  EXPECT_EQ(line.at("lr"), 1e300);
  const auto events = read_events(event_files().at(0));
  ASSERT_EQ(events.size(), 3U);
  EXPECT_TRUE(std::isnan(events[2].scalars.at("train/loss")));
  EXPECT_TRUE(std::isinf(events[2].scalars.at("train/grad_norm")));
  EXPECT_TRUE(std::isinf(events[2].scalars.at("train/lr")));
}

TEST_F(RunLogTest, BytesThatAreNotUtf8AreReplaced) {
  RunLog log = open(0);
  expect_ok(log.write({{"kind", "sample"}, {"step", 1}, {"text", "a\xff\xc3(\n"}}));
  EXPECT_EQ(records().at(0).at("text"), "a\xef\xbf\xbd\xef\xbf\xbd(\n");
}

TEST_F(RunLogTest, RefusesWhatIsNoRecord) {
  RunLog log = open(0);
  for (const json& record :
       {json(3), json::array({1}), json{{"kind", "train"}}, json{{"step", 1}}, json{{"kind", 1}, {"step", 1}},
        json{{"kind", "train"}, {"step", -1}}, json{{"kind", "train"}, {"step", 1.5}}}) {
    const Status status = log.write(record);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << record;
    EXPECT_THAT(status.message(), HasSubstr(record.dump()));
  }
  EXPECT_TRUE(records().empty());
}

TEST_F(RunLogTest, ANewRunKeepsTheOldLinesUnderTheFirstFreeNumber) {
  for (std::int64_t run = 1; run <= 3; ++run) expect_ok(open(0).write(train_record(run)));
  EXPECT_THAT(steps(), ElementsAre(3));
  EXPECT_THAT(steps("metrics.1.jsonl"), ElementsAre(1));
  EXPECT_THAT(steps("metrics.2.jsonl"), ElementsAre(2));
}

TEST_F(RunLogTest, AResumedRunDropsLaterStepsAndATornLastLine) {
  {
    RunLog log = open(0);
    for (std::int64_t step = 0; step <= 40; step += 10) expect_ok(log.write(train_record(step)));
  }
  append_raw(R"({"time":1,"kind":"train","step":1)");  // the process died here: step 15, cut off to 1
  RunLog log = open(20);
  EXPECT_THAT(steps(), ElementsAre(0, 10, 20));
  expect_ok(log.write(train_record(30, 2.5)));
  EXPECT_THAT(steps(), ElementsAre(0, 10, 20, 30));
  EXPECT_EQ(records().back().at("loss"), 2.5);
  EXPECT_FALSE(fs::exists(folder_ / ".metrics.jsonl.partial"));
}

TEST_F(RunLogTest, AResumedRunDropsLinesThatAreNoRecords) {
  expect_ok(open(0).write(train_record(5)));
  append_raw("\n[1]\nnull\n{\"step\":\"5\"}\n{}\n{\"kind\":\"train\",\"step\":6}\ngarbage\n");
  open(10);
  EXPECT_THAT(steps(), ElementsAre(5, 6));
}

TEST_F(RunLogTest, ResumingIntoAnEmptyFolderBeginsAFile) {
  RunLog log = open(100);
  expect_ok(log.write(train_record(110)));
  EXPECT_THAT(steps(), ElementsAre(110));
}

TEST_F(RunLogTest, ErrorsNameThePathAndTheReason) {
  const auto negative = RunLog::open(folder_.string(), -1);
  EXPECT_EQ(negative.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(negative.status().message(), HasSubstr("-1"));
  std::ofstream(root_ / "file") << "x";
  const auto blocked = RunLog::open((root_ / "file" / "run").string(), 0);
  EXPECT_EQ(blocked.status().code(), StatusCode::failed);
  EXPECT_THAT(blocked.status().message(), HasSubstr((root_ / "file" / "run").string()));
  fs::create_directories(folder_ / "metrics.jsonl");
  const auto folder = RunLog::open(folder_.string(), 5);
  EXPECT_EQ(folder.status().code(), StatusCode::failed);
  EXPECT_THAT(folder.status().message(), HasSubstr("metrics.jsonl"));
}

TEST_F(RunLogTest, AFullDiskIsAnErrorThatNamesThePath) {
  auto file = AppendFile::open("/dev/full", AppendFile::Mode::create_or_append);
  if (!file.ok()) GTEST_SKIP() << "no /dev/full here";
  const Status status = file->append("text");
  EXPECT_EQ(status.code(), StatusCode::failed);
  EXPECT_THAT(status.message(), HasSubstr("/dev/full: cannot append 4 bytes: No space left"));
}

// A limit on the file size simulates a disk that fills up in the middle of a line.
TEST_F(RunLogTest, AWriteThatFailsInTheMiddleIsTakenBack) {
  const auto path = (root_ / "file").string();
  auto file = AppendFile::open(path, AppendFile::Mode::create_new);
  ASSERT_TRUE(file.ok());
  expect_ok(file->append("first\n"));
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{10, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const Status status = file->append("second, which is too long\n");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), StatusCode::failed);
  expect_ok(file->append("third\n"));
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "first\nthird\n");
}

TEST_F(RunLogTest, TrainAndEvalRecordsGoToTensorBoard) {
  RunLog log = open(0);
  json record = train_record(10, 3.25);
  record["lr"] = 1e-3;
  record["grad_norm"] = 0.5;
  record["tokens_per_second"] = 28000;
  record["loss_scale"] = 65536;
  record["memory"] = {{"device", 1000}, {"device_peak", 3000}, {"host", 2000}};
  expect_ok(log.write({{"kind", "start"}, {"step", 0}, {"loss", 1}}));
  expect_ok(log.write(record));
  expect_ok(log.write({{"kind", "eval"}, {"step", 200}, {"loss", 2.5}}));
  const auto events = read_events(event_files().at(0));
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[1].session_status, 1);
  EXPECT_EQ(events[1].step, 0);
  const std::map<std::string, float> train = {{"train_loss", 3.25F},       {"lr", 1e-3F},
                                              {"train/loss", 3.25F},       {"train/lr", 1e-3F},
                                              {"train/grad_norm", 0.5F},   {"train/tokens_per_second", 28000},
                                              {"train/loss_scale", 65536}, {"memory/device", 1000},
                                              {"memory/host", 2000}};
  EXPECT_EQ(events[2].scalars, train);
  EXPECT_EQ(events[2].step, 10);
  EXPECT_EQ(events[2].wall_time, records().at(1).at("time").get<double>());
  EXPECT_EQ(events[3].scalars, (std::map<std::string, float>{{"eval/loss", 2.5F}, {"val_loss", 2.5F}}));
  EXPECT_EQ(events[3].step, 200);
}

TEST_F(RunLogTest, WhatATaskNamesGoesToTensorBoard) {
  RunLog log = open(0);
  json record = train_record(10, 3.25);
  record["images"] = 80;
  record["images_per_second"] = 7;
  expect_ok(log.write(record));
  expect_ok(log.write({{"kind", "eval"},
                       {"step", 20},
                       {"wer", 0.5},
                       {"bleu", 7},
                       {"images", 64},
                       {"seconds", 1},
                       {"better", {{"wer", "lower"}, {"bleu", "higher"}}}}));
  const auto events = read_events(event_files().at(0));
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[2].scalars,
            (std::map<std::string, float>{
                {"train/loss", 3.25F}, {"train_loss", 3.25F}, {"train/images_per_second", 7}}));
  EXPECT_EQ(events[3].scalars,
            (std::map<std::string, float>{
                {"eval/wer", 0.5F}, {"val_wer", 0.5F}, {"eval/bleu", 7}, {"val_bleu", 7}}));
}

TEST_F(RunLogTest, ExamplesAreATextInTensorBoardWithDifferencesInBold) {
  RunLog log = open(0);
  json record = {{"kind", "eval"}, {"step", 20}, {"loss", 1}};
  record["examples"] = {
      {{"name", "a|b\nc"}, {"reference", "the cat sat down"}, {"hypothesis", "the hat sat"}},
      {{"name", "2"}, {"reference", "<b>*x*"}, {"hypothesis", "\xff | y"}},
      {{"name", 3}},
      7};
  expect_ok(log.write(record));
  expect_ok(log.write({{"kind", "eval"}, {"step", 30}, {"loss", 1}, {"examples", "none"}}));
  const auto events = read_events(event_files().at(0));
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[3].step, 20);
  EXPECT_EQ(events[3].texts, (std::map<std::string, std::string>{
                                 {"eval/examples",
                                  "| clip | reference | transcribed |\n|---|---|---|\n"
                                  "| a&#124;b c | the **cat** sat **down** | the **hat** sat |\n"
                                  "| 2 | **&#60;b&#62;&#42;x&#42;** | **\xef\xbf\xbd** **&#124;** **y** |\n"
                                  "|  |  |  |\n"}}));
  EXPECT_EQ(records().at(0).at("examples").size(), 4U);
}

TEST_F(RunLogTest, EverySessionHasAnEventFileThatSortsLast) {
  open(0);
  open(20);
  open(20);
  const auto files = event_files();
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(read_events(files[0]).at(1).step, 0);
  EXPECT_EQ(read_events(files[1]).at(1).step, 21);  // START drops its own step too; 20 is kept
}

// The examples of RFC 3720, appendix B.4.
TEST(EventFile, ChecksumIsCrc32C) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(EventFile, LargeStepsSurvive) {
  const std::vector<Scalar> scalars = {{"a", -1.5F}, {std::string(300, 'b'), 0.F}};
  for (const std::int64_t step :
       {std::int64_t{0}, std::int64_t{127}, std::int64_t{128}, std::int64_t{1} << 40}) {
    const auto events = decode_events(scalars_event(1.25, step, scalars));
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].step, step);
    EXPECT_EQ(events[0].wall_time, 1.25);
    EXPECT_EQ(events[0].scalars.at(std::string(300, 'b')), 0.F);
  }
}

}  // namespace
}  // namespace octavo_train
