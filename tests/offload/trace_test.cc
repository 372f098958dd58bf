// Traces: what queues note, and the file that shows it.
// SPDX-License-Identifier: MIT
#include "offload/trace.h"
#include "offload/queue.h"

#include <octavo/offload.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <locale>
#include <sstream>
#include <string>
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
  const auto queues = make_cpu_queues();
  ASSERT_TRUE(queues->work().run(nothing, "before").ok());
  ASSERT_TRUE(queues->work().record_fence()->wait().ok());
  trace_offload(true);
  char byte = 0;
  ASSERT_TRUE(queues->up().copy(&byte, &byte, 0, "states up").ok());
  ASSERT_TRUE(queues->work().order_after(*queues->up().record_fence()).ok());
  ASSERT_TRUE(queues->work().run(nothing, "step").ok());
  ASSERT_TRUE(queues->work().record_fence()->wait().ok());
  trace_offload(false);
  ASSERT_TRUE(queues->work().run(nothing, "later").ok());
  ASSERT_TRUE(queues->work().record_fence()->wait().ok());
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
    Source() { register_source(); }
    ~Source() { unregister_source(); }
    void collect() override { record_trace("gpu", "kernel", 1.0, 3.0); }
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

// Numbers of other languages: 1.234,5. A stream has the locale that is global in C++, a function of C that of
// setlocale.
class Commas final : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\1"; }
};

// A locale with a decimal comma; false where the system has none and cannot make one.
bool set_german() {
  if (std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr) return true;
  static const auto folder =
      std::filesystem::temp_directory_path() / ("octavo_locale_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string made = (folder / "de_DE.UTF-8").string();
  (void)std::system(("localedef -i de_DE -f UTF-8 " + made + " >/dev/null 2>&1").c_str());
  (void)setenv("LOCPATH", folder.c_str(), 1);
  const bool found = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
  (void)unsetenv("LOCPATH");
  std::filesystem::remove_all(folder);
  return found;
}

std::string written_stretches() {
  trace_offload(true);
  for (int row = 10; row < 30; ++row) note_offload("row " + std::to_string(row), "event", 0.0, 1234.5);
  trace_offload(false);
  return written();
}

TEST(Trace, HasADecimalPointInEveryLocale) {
  const std::string plain = written_stretches();
  EXPECT_THAT(plain, HasSubstr("\"dur\": 1234.500"));
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Commas));
  EXPECT_EQ(written_stretches(), plain);
  std::locale::global(before);
  if (!set_german()) GTEST_SKIP() << "no locale with a decimal comma";
  EXPECT_EQ(written_stretches(), plain);
  std::setlocale(LC_ALL, "C");
}

}  // namespace
}  // namespace octavo::offload
