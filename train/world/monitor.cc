// SPDX-License-Identifier: MIT
#include "train/world/monitor.h"

#include "train/world/launcher.h"
#include "train/world/world.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <sstream>
#include <utility>

namespace octavo::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLeft = "left";

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string beat_name(int rank) { return "beat/" + std::to_string(rank); }

std::string seconds_text(Clock::duration time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

// What is known of a rank.
struct Monitor::Seen {
  std::string text;         // its last sign of life
  Clock::time_point fresh;  // when that was new
  std::int64_t calls = 0;
  std::string doing;
  std::int64_t seconds = 0;  // that it has been doing it, at that sign
  Clock::time_point moved;   // when it came to another call
  bool left = false;
};

Monitor::Monitor(const Place& place, MonitorPlan plan, StorePointer watching, StorePointer telling)
    : place_(place), plan_(std::move(plan)), watching_(std::move(watching)), telling_(std::move(telling)) {
  since_ = Clock::now();
  if (place_.leads()) watching_->set(key("failed"), bytes_of(""));
  // The launcher's own key: nobody else writes to it where another one has started the ranks.
  if (place_.leads() && place_.launcher != Place::Launcher::own) watching_->set(kLauncherKey, bytes_of(""));
  beat();
}

Monitor::~Monitor() { leave(); }

void Monitor::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(left_, true)) return;
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  try {
    watching_->set(key(beat_name(place_.rank)), bytes_of(kLeft));
    // The process that serves the store ends last.
    const std::int64_t left = watching_->add(key(kLeft), 1);
    const auto end = Clock::now() + plan_.silence;
    const bool serves = place_.leads() && !place_.store_is_there && !failed();
    for (std::int64_t now = left; serves && now < place_.ranks && Clock::now() < end;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      now = watching_->add(key(kLeft), 0);
    }
  } catch (const std::exception&) {
    // The store is gone: so is who would read it.
  }
}

void Monitor::watch() {
  const auto now = Clock::now();
  for (int rank = 0; rank < place_.ranks; ++rank) {
    if (!place_.leads() && rank != 0) continue;
    Seen& seen = seen_[rank];
    seen.fresh = seen.moved = now;
  }
  thread_ = std::thread([this] { run(); });
}

void Monitor::doing(const std::string& what) {
  const std::lock_guard lock(mutex_);
  doing_ = what;
  since_ = Clock::now();
}

void Monitor::remember(const std::string& note) {
  const std::lock_guard lock(mutex_);
  note_ = note;
}

bool Monitor::failed() const {
  const std::lock_guard lock(mutex_);
  return !failure_.empty();
}

void Monitor::fail(const std::string& reason) {
  const std::string text = reason.starts_with("rank ") ? reason : rank_text(place_.rank) + ": " + reason;
  try {
    telling_->compareSet(key("failed"), bytes_of(""), bytes_of(text));
  } catch (const std::exception&) {
    // The others see that the store is gone.
  }
  learn(text);
  const std::lock_guard lock(mutex_);
  heard_ = true;
}

void Monitor::await(const std::function<bool()>& done) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done() || !failure_.empty(); });
  if (done()) return;
  heard_ = true;
  throw WorldError(message());
}

void Monitor::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Monitor::blame(const std::string& what) {
  std::unique_lock lock(mutex_);
  // A connection that breaks is seen before the reason is.
  changed_.wait_for(lock, plan_.silence + 2 * plan_.beat, [&] { return !failure_.empty(); });
  heard_ = true;
  if (failure_.empty()) throw WorldError("another rank is gone or has not come: " + what + note_);
  throw WorldError(message());
}

std::string Monitor::message() const { return failure_ + note_; }

void Monitor::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, plan_.beat, [&] { return stop_; })) return;
    }
    end_if_stuck();
    if (failed()) continue;
    try {
      beat();
      look();
    } catch (const std::exception&) {
      const bool served = place_.store_is_there;
      learn(served ? "the launcher, which serves the store of the ranks, is gone"
                   : "rank 0, which serves the store of the ranks, is gone");
    }
  }
}

// "beats calls seconds doing".
void Monitor::beat() {
  std::string doing;
  Clock::time_point since;
  {
    const std::lock_guard lock(mutex_);
    doing = doing_;
    since = since_;
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - since).count();
  watching_->set(key(beat_name(place_.rank)),
                 bytes_of(std::to_string(++beats_) + " " + std::to_string(calls_.load()) + " " +
                          std::to_string(seconds) + " " + doing));
}

void Monitor::look() {
  std::vector<std::string> keys{key("failed"), kLauncherKey};
  for (const auto& [rank, seen] : seen_) keys.push_back(key(beat_name(rank)));
  const auto values = watching_->multiGet(keys);
  for (const std::size_t said : {std::size_t{0}, std::size_t{1}}) {
    if (!values[said].empty()) return learn(text_of(values[said]));
  }
  std::size_t at = 2;
  for (const auto& [rank, seen] : seen_) watch_rank(rank, text_of(values[at++]));
  if (place_.leads()) find_hang();
}

void Monitor::watch_rank(int rank, const std::string& text) {
  Seen& seen = seen_[rank];
  const auto now = Clock::now();
  seen.left = text == kLeft;
  if (text != seen.text) {
    seen.text = text;
    seen.fresh = now;
    std::istringstream in(text);
    std::int64_t beats = 0, calls = 0;
    in >> beats >> calls >> seen.seconds;
    std::getline(in >> std::ws, seen.doing);
    if (calls != seen.calls) seen.moved = now;
    seen.calls = calls;
  }
  if (!seen.left && now - seen.fresh > plan_.silence) {
    declare(rank_text(rank) + " is gone: it has shown no sign of life for " + seconds_text(now - seen.fresh) +
            ", and was " + seen.doing);
  }
}

// A rank hangs where others have come further, and it has not moved for too long since.
void Monitor::find_hang() {
  std::int64_t most = 0, least = std::numeric_limits<std::int64_t>::max();
  for (const auto& [rank, seen] : seen_) {
    if (seen.left) continue;
    most = std::max(most, seen.calls);
    least = std::min(least, seen.calls);
  }
  const auto now = Clock::now();
  for (auto& [rank, seen] : seen_) {
    if (seen.left) continue;
    if (seen.calls == most) seen.moved = now;  // nobody waits for it
    if (seen.calls > least || now - seen.moved <= plan_.timeout) continue;
    return declare(rank_text(rank) + " hangs: the others have waited for it for " +
                   seconds_text(now - seen.moved) + ", more than rank_timeout allows, and it has been " +
                   seen.doing + " for " +
                   seconds_text(std::chrono::seconds(seen.seconds) + (now - seen.fresh)));
  }
}

// The first reason counts, whoever has it.
void Monitor::declare(const std::string& reason) {
  const auto first = watching_->compareSet(key("failed"), bytes_of(""), bytes_of(reason));
  learn(first.empty() ? reason : text_of(first));
}

void Monitor::learn(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = reason;
    failed_at_ = Clock::now();
  }
  changed_.notify_all();
}

void Monitor::end_if_stuck() {
  const std::lock_guard lock(mutex_);
  if (failure_.empty() || heard_ || Clock::now() - failed_at_ < plan_.patience) return;
  // Rank 0 speaks for all; the next one where rank 0 is what failed.
  const int speaker = failure_.starts_with("rank 0 ") ? 1 : 0;
  if (place_.rank == speaker) {
    const std::string line = "octavo: " + message() + "\n";
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    static_cast<void>(written);
  }
  _exit(1);
}

}  // namespace octavo::train
