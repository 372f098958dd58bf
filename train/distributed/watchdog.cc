// SPDX-License-Identifier: MIT
#include "train/distributed/watchdog.h"

#include "train/distributed/launcher.h"
#include "train/distributed/process_group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <sstream>
#include <utility>

namespace octavo_train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLeft = "left";
constexpr std::uint64_t kSlowestBytesPerMillisecond = 1000;  // 1 MB/s, for the slowest disk

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string beat_name(int rank) { return "beat/" + std::to_string(rank); }

}  // namespace

std::string local_work_key(int rank) { return "octavo/local_work/" + std::to_string(rank); }

// The last known state of a rank.
struct Watchdog::Seen {
  std::string text;         // its last heartbeat
  Clock::time_point fresh;  // when that heartbeat was first seen
  std::int64_t calls = 0;
  std::string doing;
  std::int64_t seconds = 0;  // since it began `doing`, at that heartbeat
  Clock::time_point moved;   // when its number of calls last changed
  bool local = false;        // it does local work
  bool left = false;
};

Watchdog::Watchdog(const RankInfo& rank_info, WatchdogOptions options, StorePointer watching,
                   StorePointer telling)
    : rank_info_(rank_info),
      options_(std::move(options)),
      watching_(std::move(watching), options_.silence),
      telling_(std::move(telling), options_.silence) {
  since_ = Clock::now();
  if (rank_info_.leads()) watching_.set(key("failed"), "");
  // Only Octavo's own launcher writes this key. Under another launcher the key must still exist.
  if (rank_info_.leads() && rank_info_.launcher != RankInfo::Launcher::own) watching_.set(kLauncherKey, "");
  beat();
}

Watchdog::~Watchdog() { leave(); }

void Watchdog::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(left_, true)) return;
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  try {
    watching_.set(key(beat_name(rank_info_.rank)), kLeft);
    const auto add = [&](std::int64_t count) {
      return watching_.call(
          [name = key(kLeft), count](c10d::Store& store) { return store.add(name, count); });
    };
    // The process that serves the store ends last.
    const std::int64_t left = add(1);
    const auto end = Clock::now() + options_.silence;
    const bool serves = rank_info_.leads() && !rank_info_.store_is_there && !failed();
    for (std::int64_t now = left; serves && now < rank_info_.ranks && Clock::now() < end;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      now = add(0);
    }
  } catch (const std::exception&) {
    // The store is gone, and so is the process that would read the value.
  }
}

void Watchdog::watch() {
  const auto now = Clock::now();
  for (int rank = 0; rank < rank_info_.ranks; ++rank) {
    if (!rank_info_.leads() && rank != 0) continue;
    Seen& seen = seen_[rank];
    seen.fresh = seen.moved = now;
  }
  thread_ = std::thread([this] { run(); });
}

void Watchdog::set_activity(const std::string& what) {
  const std::lock_guard lock(mutex_);
  doing_ = what;
  since_ = Clock::now();
}

void Watchdog::set_error_suffix(const std::string& note) {
  const std::lock_guard lock(mutex_);
  note_ = note;
}

void Watchdog::begin_local_work(const std::string& what, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (++local_depth_ > 1) return;
  before_local_ = std::exchange(doing_, what);
  since_ = Clock::now();
  const std::chrono::milliseconds reading(bytes / kSlowestBytesPerMillisecond);
  local_until_ = since_ + options_.local + reading;
}

void Watchdog::end_local_work() {
  const std::lock_guard lock(mutex_);
  if (--local_depth_ > 0) return;
  doing_ = before_local_;
  since_ = local_end_ = Clock::now();
}

bool Watchdog::works_locally() const { return local_depth_ > 0 && Clock::now() < local_until_; }

bool Watchdog::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

std::optional<RankFailure> Watchdog::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Watchdog::fail(const RankFailure& failure) {
  try {
    telling_.compare_set(key("failed"), "", to_store(failure));
  } catch (const std::exception&) {
    // The other ranks detect that the store is gone.
  }
  record_failure(failure);
  const std::lock_guard lock(mutex_);
  heard_ = true;
}

void Watchdog::await(const std::function<bool()>& done) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done() || failure_; });
  if (done()) return;
  heard_ = true;
  throw ProcessGroupError(*failure_, note_);
}

void Watchdog::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Watchdog::throw_failure(const std::string& what) {
  std::unique_lock lock(mutex_);
  // A broken connection is noticed before its reason is known.
  changed_.wait_for(lock, options_.silence + 2 * options_.beat, [&] { return failure_.has_value(); });
  heard_ = true;
  if (!failure_) throw ProcessGroupError({.text = "another rank is gone or has not joined: " + what}, note_);
  throw ProcessGroupError(*failure_, note_);
}

void Watchdog::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, options_.beat, [&] { return stop_; })) return;
    }
    end_if_stuck();
    std::string what;  // the problem with the store
    try {
      show_local_work();
      if (failed()) continue;
      beat();
      look();
    } catch (const StoreTimeout&) {
      what = " has not answered for " + seconds_text(options_.silence);
    } catch (const std::exception&) {
      what = " is gone";
    }
    if (what.empty()) continue;
    const bool launcher = rank_info_.store_is_there;
    record_failure(
        {.rank = launcher ? RankFailure::kNoRank : 0,
         .found_by = RankFailure::FoundBy::others,
         .text = (launcher ? "the launcher" : "rank 0") + (", which serves the store of the ranks," + what)});
  }
}

// Writes the heartbeat in the form "beats calls seconds local doing".
void Watchdog::beat() {
  std::string doing;
  Clock::time_point since;
  bool local = false;
  {
    const std::lock_guard lock(mutex_);
    doing = doing_;
    since = since_;
    local = works_locally();
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - since).count();
  watching_.set(key(beat_name(rank_info_.rank)),
                fmt::format("{} {} {} {:d} {}", ++beats_, calls_.load(), seconds, local, doing));
}

// Runs after a failure too: the launcher must not kill a rank that still writes.
void Watchdog::show_local_work() {
  if (rank_info_.launcher != RankInfo::Launcher::own) return;
  bool local = false;
  {
    const std::lock_guard lock(mutex_);
    local = works_locally();
  }
  if (!local && !shown_) return;
  shown_ = local;
  watching_.set(local_work_key(rank_info_.rank), local ? std::to_string(++local_beats_) : "");
}

void Watchdog::look() {
  std::vector<std::string> keys{key("failed"), kLauncherKey};
  for (const auto& [rank, seen] : seen_) keys.push_back(key(beat_name(rank)));
  const auto values = watching_.call([keys](c10d::Store& store) { return store.multiGet(keys); });
  for (const std::size_t said : {std::size_t{0}, std::size_t{1}})
    if (!values[said].empty()) return record_failure(from_store(text_of(values[said])));
  std::size_t at = 2;
  for (const auto& [rank, seen] : seen_) watch_rank(rank, text_of(values[at++]));
  if (rank_info_.leads()) find_hang();
}

void Watchdog::watch_rank(int rank, const std::string& text) {
  Seen& seen = seen_[rank];
  const auto now = Clock::now();
  seen.left = text == kLeft;
  if (text != seen.text) {
    seen.text = text;
    seen.fresh = now;
    std::istringstream in(text);
    std::int64_t beats = 0, calls = 0;
    in >> beats >> calls >> seen.seconds >> seen.local;
    std::getline(in >> std::ws, seen.doing);
    if (calls != seen.calls) seen.moved = now;
    seen.calls = calls;
  }
  if (!seen.left && now - seen.fresh > options_.silence) {
    publish_failure({rank, RankFailure::FoundBy::others,
                     rank_text(rank) + " is gone: it has sent no heartbeat for " +
                         seconds_text(now - seen.fresh) + ", and was " + seen.doing});
  }
}

// Declares a failure if a rank hangs: other ranks have made more calls, and it has not moved within the
// timeout.
void Watchdog::find_hang() {
  std::int64_t most = 0, least = std::numeric_limits<std::int64_t>::max();
  for (const auto& [rank, seen] : seen_) {
    if (seen.left) continue;
    most = std::max(most, seen.calls);
    least = std::min(least, seen.calls);
  }
  const auto now = Clock::now();
  for (auto& [rank, seen] : seen_) {
    if (seen.left) continue;
    if (seen.calls == most || seen.local) seen.moved = now;  // no rank waits for it, or it does local work
    if (seen.calls > least || now - seen.moved <= options_.timeout) continue;
    return publish_failure({rank, RankFailure::FoundBy::others,
                            rank_text(rank) + " hangs: the others have waited for it for " +
                                seconds_text(now - seen.moved) +
                                ", more than rank_timeout allows, and it has been " + seen.doing + " for " +
                                seconds_text(std::chrono::seconds(seen.seconds) + (now - seen.fresh))});
  }
}

// The first failure counts, no matter which rank found it.
void Watchdog::publish_failure(const RankFailure& failure) {
  const std::string first = watching_.compare_set(key("failed"), "", to_store(failure));
  record_failure(first.empty() ? failure : from_store(first));
}

void Watchdog::record_failure(const RankFailure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
    failed_at_ = Clock::now();
  }
  changed_.notify_all();
}

void Watchdog::end_if_stuck() {
  const std::lock_guard lock(mutex_);
  if (!failure_ || works_locally()) return;
  const auto now = Clock::now();
  const bool overdue = local_depth_ > 0;
  if (!overdue && (heard_ || now - std::max(failed_at_, local_end_) < options_.patience)) return;
  // Rank 0 prints the failure for all ranks; rank 1 prints it if rank 0 failed.
  const int speaker = failure_->rank == 0 ? 1 : 0;
  if (rank_info_.rank == speaker || overdue) {
    std::string line = "octavo: " + failure_->text + note_;
    if (overdue)
      line += "; " + rank_text(rank_info_.rank) + " did not finish " + doing_ + " within " +
              seconds_text(now - since_);
    line += "\n";
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    static_cast<void>(written);
  }
  _exit(1);
}

}  // namespace octavo_train
