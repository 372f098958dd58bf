// Tests the heartbeat lines of a run that prints nothing else, and the note about a run that takes hours.
// SPDX-License-Identifier: MIT
#include "train/console/console.h"
#include "train/task.h"

#include "tests/train/parts_support.h"
#include "train/run/progress.h"

#include <condition_variable>
#include <mutex>

namespace octavo_train {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Transcription : public Console {
 public:
  explicit Transcription(bool terminal) : terminal_(terminal) {}
  void progress(const std::string& line) override { add(line); }
  void note(const std::string& line) override { add("note " + line); }
  [[nodiscard]] bool replaces_lines() const override { return terminal_; }

  // Waits for `count` lines.
  std::vector<std::string> lines(std::size_t count) {
    std::unique_lock lock(mutex_);
    more_.wait_for(lock, 60s, [&] { return lines_.size() >= count; });
    return lines_;
  }

 private:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
    more_.notify_all();
  }
  bool terminal_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::vector<std::string> lines_;
};

TEST(Heartbeat, SaysWhatIsBeingDoneUntilSomethingElseIs) {
  Transcription heard(true);
  Heartbeat console(heard, 5ms);
  console.doing("step 1/3, forward");
  for (const std::string& line : heard.lines(3)) {
    EXPECT_THAT(line, StartsWith("step 1/3, forward: "));
    EXPECT_THAT(line, HasSubstr(" s so far"));
  }
  console.doing("step 1/3, backward");
  const std::size_t before = heard.lines(0).size();
  EXPECT_THAT(heard.lines(before + 2).back(), StartsWith("step 1/3, backward: "));
}

TEST(Heartbeat, PassesOnWhatIsSaidAndIsSilentWithNothingToDo) {
  Transcription heard(false);
  {
    Heartbeat console(heard, 1ms);
    console.progress("a");
    console.note("b");
    EXPECT_FALSE(console.replaces_lines());
    console.doing("slow");
    heard.lines(3);
    console.doing("");
    const std::size_t before = heard.lines(0).size();
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(heard.lines(0).size(), before);
    console.doing("slow again");
    EXPECT_THAT(heard.lines(before + 1).back(), StartsWith("slow again: "));
  }
  EXPECT_EQ(heard.lines(0)[0], "a");
  EXPECT_EQ(heard.lines(0)[1], "note b");
}

// Each wait is twice as long as the one before, so five lines take at least 1 + 2 + 4 + 8 + 16 ms, and n
// lines 2^n - 1 ms.
TEST(Heartbeat, KeepsALogShort) {
  Transcription heard(false);
  Heartbeat console(heard, 1ms);
  const auto begin = std::chrono::steady_clock::now();
  console.doing("slow");
  heard.lines(5);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 31ms);
}

TEST(Estimate, ARunOfHoursSaysSoAndWhatWouldHelp) {
  const Settings config = settings({"max_steps=3000", "n_embd=256", "block_size=512", "data.train=x"});
  const std::unique_ptr<Task> task = make_task("text");
  task->build(config);
  const std::string shorter = task->text().speed_advice;
  const std::string note = long_run_note(config, shorter, 2, 3000, 55, true);
  EXPECT_THAT(note, HasSubstr("45 h 48 min: 2998 steps of 55 s each"));
  EXPECT_THAT(note, HasSubstr("on a GPU"));
  EXPECT_THAT(note, HasSubstr("n_embd is 256"));
  EXPECT_THAT(note, HasSubstr("block_size is 512"));
  EXPECT_THAT(note, HasSubstr("max_steps=67 takes an hour"));  // 65 more steps
  EXPECT_THAT(long_run_note(config, shorter, 2, 3000, 55, false), Not(HasSubstr("on a GPU")));
  EXPECT_EQ(long_run_note(config, shorter, 0, 3600, 0.999, true), "");
  EXPECT_NE(long_run_note(config, shorter, 0, 3600, 1.001, true), "");
  const Settings epochs = settings({"num_train_epochs=3", "data.train=x"});
  EXPECT_THAT(long_run_note(epochs, shorter, 2, 3000, 55, true), Not(HasSubstr("max_steps")));
}

}  // namespace
}  // namespace octavo_train
