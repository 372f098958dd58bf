// Traces: what queues note, and the file that shows it.
// SPDX-License-Identifier: MIT
#include "offload/trace.h"
#include "offload/queue.h"

#include <octavo/offload.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace octavo::offload {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string written() {
  const auto path = std::filesystem::temp_directory_path() / ("octavo_trace_" + std::to_string(getpid()));
  EXPECT_TRUE(write_offload_trace(path.string()).ok());
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  return text.str();
}

Status nothing(void* /*stream*/) {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return {};
}

TEST(Trace, NotesWorkWhileItIsOnAndForgetsItWhenWritten) {
  const auto link = make_cpu_link();
  ASSERT_TRUE(link->work().run(nothing, "before").ok());
  ASSERT_TRUE(link->work().mark()->wait().ok());
  trace_offload(true);
  char byte = 0;
  ASSERT_TRUE(link->up().copy(&byte, &byte, 0, "states up").ok());
  ASSERT_TRUE(link->work().after(*link->up().mark()).ok());
  ASSERT_TRUE(link->work().run(nothing, "step").ok());
  ASSERT_TRUE(link->work().mark()->wait().ok());
  trace_offload(false);
  ASSERT_TRUE(link->work().run(nothing, "later").ok());
  ASSERT_TRUE(link->work().mark()->wait().ok());
  const std::string text = written();
  EXPECT_THAT(text, HasSubstr("\"traceEvents\": ["));
  for (const char* part :
       {"\"name\": \"cpu up\"", "\"name\": \"cpu work\"", "\"states up\"", "\"step\"", "\"ts\": 0.000"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("before")));
  EXPECT_THAT(text, Not(HasSubstr("later")));
  // The step slept for two milliseconds.
  const auto step = text.find("\"step\"");
  const auto duration = std::stod(text.substr(text.find("\"dur\": ", step) + 7));
  EXPECT_GE(duration, 2000.0);
  EXPECT_THAT(written(), Not(HasSubstr("step")));
}

TEST(Trace, SourcesAreAskedWhileTheyExist) {
  struct Source final : TraceSource {
    Source() { enter(); }
    ~Source() { leave(); }
    void collect() override { note("gpu", "kernel", 1.0, 3.0); }
  };
  {
    const Source source;
    EXPECT_THAT(written(), HasSubstr("\"name\": \"kernel\", \"ts\": 0.000, \"dur\": 2.000"));
  }
  EXPECT_THAT(written(), Not(HasSubstr("kernel")));
}

TEST(Trace, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_THAT(write_offload_trace("/no/such/folder/trace.json").message(),
              HasSubstr("/no/such/folder/trace.json"));
}

TEST(Trace, HasStretchesOfTheCaller) {
  note_offload("model", "off", 0.0, 1.0);
  trace_offload(true);
  note_offload("model", "layer \"1\"\n\\", 10.0, 13.0);
  trace_offload(false);
  const std::string text = written();
  EXPECT_THAT(text, HasSubstr(R"("args": {"name": "model"})"));
  EXPECT_THAT(text, HasSubstr(R"("name": "layer \"1\" \\", "ts": 0.000, "dur": 3.0)"));
  EXPECT_THAT(text, Not(HasSubstr("off\"")));
}

}  // namespace
}  // namespace octavo::offload
