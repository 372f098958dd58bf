// SPDX-License-Identifier: MIT
#include "ranks/ranks.h"
#include "train/distributed/launcher.h"
#include "train/distributed/store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>

namespace octavo_train::ranks {
namespace {

std::vector<std::string> environment_of(const ProcessOptions& plan, int rank, int port) {
  std::map<std::string, std::string> all;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string text = *each;
    all[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  const std::string ranks = std::to_string(plan.ranks), number = std::to_string(rank);
  all["OMP_NUM_THREADS"] = "1";
  if (plan.placed) {
    all["OCTAVO_LAUNCHER"] = "own";
    all["RANK"] = all["LOCAL_RANK"] = number;
    all["WORLD_SIZE"] = all["LOCAL_WORLD_SIZE"] = ranks;
    all["MASTER_ADDR"] = "127.0.0.1";
    all["MASTER_PORT"] = std::to_string(port);
  }
  for (const auto& [name, value] : plan.environment) all.insert_or_assign(name, value);
  std::vector<std::string> lines;
  for (const auto& [name, value] : all)
    if (!value.empty()) lines.push_back(name + "=" + value);
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

pid_t start(const ProcessOptions& plan, int rank, int port, const std::string& file) {
  std::vector<std::string> environment = environment_of(plan, rank, port);
  std::vector<std::string> words{"ranks_test", "--program=" + plan.program};
  words.insert(words.end(), plan.arguments.begin(), plan.arguments.end());
  const std::vector<char*> variables = pointers(environment), arguments = pointers(words);
  const int output = open(file.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  const pid_t parent = getpid(), id = fork();
  if (id != 0) {
    close(output);
    return id;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execve("/proc/self/exe", arguments.data(), variables.data());
  _exit(127);
}

std::string contents(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

bool wait_for_file(const std::string& file) {
  for (int i = 0; i < 3000 && access(file.c_str(), F_OK) != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return access(file.c_str(), F_OK) == 0;
}

struct Processes::Store {
  octavo_train::ServedStore served;
};

Processes::Processes(const ProcessOptions& plan)
    : store_(std::make_unique<Store>()), end_(std::chrono::steady_clock::now() + plan.limit) {
  static int group = 0;
  const std::string name = scratch() + "/output-" + std::to_string(++group) + "-";
  store_->served = octavo_train::serve_store("127.0.0.1", 0).value();
  store_->served.store->set(octavo_train::kLauncherKey, std::string());  // as the launcher does
  for (int rank = 0; rank < plan.ranks; ++rank) {
    files_.push_back(name + std::to_string(rank));
    ids_.push_back(start(plan, rank, store_->served.port, files_.back()));
  }
}

Processes::~Processes() {
  if (waited_) return;
  for (int rank = 0; rank < static_cast<int>(ids_.size()); ++rank) signal(rank, SIGKILL);
  for (const pid_t id : ids_) waitpid(id, nullptr, 0);
}

void Processes::signal(int rank, int number) const { kill(id(rank), number); }

std::vector<Ended> Processes::wait() {
  std::vector<Ended> all(ids_.size());
  std::vector<bool> ended(ids_.size());
  for (std::size_t left = ids_.size(); left > 0;) {
    const bool late = std::chrono::steady_clock::now() > end_;
    for (std::size_t rank = 0; rank < ids_.size(); ++rank) {
      if (ended[rank]) continue;
      if (late) {
        all[rank].late = true;
        kill(ids_[rank], SIGKILL);
      }
      int status = 0;
      if (waitpid(ids_[rank], &status, late ? 0 : WNOHANG) == 0) continue;
      ended[rank] = true;
      --left;
      all[rank].code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      all[rank].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      all[rank].output = contents(files_[rank]);
    }
    if (left > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  waited_ = true;
  return all;
}

}  // namespace octavo_train::ranks
