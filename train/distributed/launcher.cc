// SPDX-License-Identifier: MIT
#include "train/distributed/launcher.h"

#include "train/distributed/rank_failure.h"
#include "train/distributed/store.h"
#include "train/distributed/watchdog.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

namespace octavo_train {
namespace {

using Clock = std::chrono::steady_clock;

// Returns the number of processors that this process may use.
int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
}

// The strings of an argument list or an environment, ready for execve: after fork(), a child of a process
// with threads must not allocate.
class TextList {
 public:
  explicit TextList(std::vector<std::string> texts) : texts_(std::move(texts)) {
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  [[nodiscard]] char* const* get() const { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

TextList variables_of(int rank, int ranks, int port) {
  std::map<std::string, std::string> all;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string text = *each;
    const std::size_t end = std::min(text.find('='), text.size());
    all[text.substr(0, end)] = end < text.size() ? text.substr(end + 1) : "";
  }
  // If each rank used all processors, the ranks together would be slower than one.
  all.try_emplace("OMP_NUM_THREADS", std::to_string(std::max(usable_processors() / ranks, 1)));
  all["OCTAVO_LAUNCHER"] = "own";
  all["RANK"] = all["LOCAL_RANK"] = std::to_string(rank);
  all["WORLD_SIZE"] = all["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  all["MASTER_ADDR"] = "127.0.0.1";
  all["MASTER_PORT"] = std::to_string(port);
  std::vector<std::string> lines;
  for (const auto& [name, value] : all) lines.push_back(name + "=" + value);
  return TextList(std::move(lines));
}

pid_t start(const TextList& command, const TextList& variables, const sigset_t& signals) {
  const pid_t parent = getpid(), id = fork();
  if (id != 0) return id;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  execve("/proc/self/exe", command.get(), variables.get());
  _exit(127);
}

std::string ending_of(int status) {
  if (WIFEXITED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  return fmt::format("was ended by signal {} ({}){}", number, strsignal(number),
                     number == SIGKILL ? "; the system does that if its memory is full" : "");
}

// The rank processes of a run.
class Ranks {
 public:
  explicit Ranks(StorePointer store) : store_(std::move(store)) {}
  ~Ranks() {
    send(SIGKILL);
    for (const auto& [id, rank] : alive_) waitpid(id, nullptr, 0);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void add(pid_t id) { alive_.emplace(id, started_++); }
  [[nodiscard]] bool any() const { return !alive_.empty(); }
  // Returns true if a rank does local work: its text in the store has changed within `silence`.
  [[nodiscard]] bool any_works(std::chrono::milliseconds silence) {
    const auto now = Clock::now();
    bool works = false;
    for (const auto& [id, rank] : alive_) {
      const std::string key = local_work_key(rank);
      if (!store_->check({key})) continue;
      const std::string sign = store_->get_to_str(key);
      Sign& last = signs_[rank];
      if (sign != last.text) last = {sign, now};
      works |= !sign.empty() && now - last.since < silence;
    }
    return works;
  }
  [[nodiscard]] std::optional<Clock::time_point> failed() const { return failed_; }
  [[nodiscard]] const Launched& outcome() const { return outcome_; }

  void kill_the_rest() {
    killing_ = true;
    send(SIGKILL);
  }
  void send(int signal) const {
    for (const auto& [id, rank] : alive_) kill(id, signal);
  }
  // Forwards a signal to the first rank that is alive: rank 0, which informs the others.
  void pass_on(int signal) {
    passed_on_ = signal;
    const auto first = std::min_element(alive_.begin(), alive_.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    if (first != alive_.end()) kill(first->first, signal);
  }
  void collect() {
    for (auto each = alive_.begin(); each != alive_.end();) {
      int status = 0;
      if (waitpid(each->first, &status, WNOHANG) != each->first) {
        ++each;
        continue;
      }
      ended(each->second, status);
      each = alive_.erase(each);
    }
  }

 private:
  void ended(int rank, int status) {
    if (status == 0) return;
    // If a signal arrives before all ranks have joined, another rank may end before rank 0.
    if (rank == 0 && passed_on_ != 0 && WIFEXITED(status) && WEXITSTATUS(status) == 128 + passed_on_)
      outcome_.code = WEXITSTATUS(status);
    const std::string text = rank_text(rank) + " " + ending_of(status);
    // Rank 0 prints what happened to the others; only the launcher can print what happened to rank 0.
    if (rank == 0 && WIFSIGNALED(status))
      outcome_.message = killing_ ? first_ + "; rank 0 did not end by itself and was killed" : text;
    if (failed_) return;
    first_ = text;
    failed_ = Clock::now();
    outcome_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (WIFSIGNALED(status))
      store_->set(kLauncherKey, to_store({rank, RankFailure::FoundBy::launcher, text}));
  }

  struct Sign {  // the progress text of local work
    std::string text;
    Clock::time_point since;
  };

  StorePointer store_;
  std::map<pid_t, int> alive_;  // process id to rank
  std::map<int, Sign> signs_;   // by rank
  int started_ = 0;
  std::optional<Clock::time_point> failed_;
  std::string first_;     // the first failure
  bool killing_ = false;  // the remaining ranks were killed
  int passed_on_ = 0;     // the last signal forwarded to rank 0
  Launched outcome_;
};

}  // namespace

Result<Launched> launch(const LaunchOptions& options) {
  const BlockedSignals signals({SIGINT, SIGTERM, SIGHUP, SIGCHLD});
  RETURN_IF_ERROR(enough_descriptors(16 + 2 * options.ranks));
  ASSIGN_OR_RETURN(ServedStore served, serve_store("127.0.0.1", 0));
  served.store->set(kLauncherKey, std::string());
  Ranks ranks(served.store);
  const TextList command(options.command);
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t id = start(command, variables_of(rank, options.ranks, served.port), signals.before());
    if (id < 0)
      return failed_error("rank {} of {} could not be started: {}", rank, options.ranks,
                          std::strerror(errno));
    ranks.add(id);
  }
  bool sent_sigterm = false;
  Clock::time_point worked{};  // the last time a rank did local work
  while (ranks.any()) {
    const int signal = signals.next(std::chrono::milliseconds(500));
    if (signal != 0 && signal != SIGCHLD) ranks.pass_on(signal);
    ranks.collect();
    if (!ranks.failed()) continue;
    if (ranks.any_works(options.silence)) worked = Clock::now();
    const auto since = Clock::now() - std::max(*ranks.failed(), worked);
    if (!sent_sigterm && since > options.ask_after) {
      ranks.send(SIGTERM);
      sent_sigterm = true;
    }
    if (since > options.kill_after) ranks.kill_the_rest();
  }
  return ranks.outcome();
}

}  // namespace octavo_train
