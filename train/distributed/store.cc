// SPDX-License-Identifier: MIT
#include "train/distributed/store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <fcntl.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <exception>
#include <mutex>
#include <vector>

namespace octavo_train {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Resolves a host name. Returns null after an error, which is in `problem`.
Addresses resolve(const std::string& host, int port, int type, std::string& problem) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = AI_NUMERICSERV | (host.empty() ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const std::string service = std::to_string(port);
  const int code = getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &list);
  if (code != 0) problem = gai_strerror(code);
  return Addresses(code == 0 ? list : nullptr);
}

class Socket {
 public:
  explicit Socket(const addrinfo& at)
      : descriptor_(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC, at.ai_protocol)) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  [[nodiscard]] int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

std::string numbers(const sockaddr* address, socklen_t length, int* port = nullptr) {
  char host[NI_MAXHOST] = {}, service[NI_MAXSERV] = {};
  const int flags = NI_NUMERICHOST | NI_NUMERICSERV;
  if (getnameinfo(address, length, host, sizeof host, service, sizeof service, flags) != 0) return {};
  if (port != nullptr) *port = std::stoi(service);
  return host;
}

std::string own_end(int descriptor, int* port) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  return getsockname(descriptor, address, &length) == 0 ? numbers(address, length, port) : std::string();
}

std::string text_of(const std::string& address, int port) {
  return (address.empty() ? "all addresses" : address) + ", port " + std::to_string(port);
}

// Returns a socket that listens at this address. TCPStore itself would listen on every interface.
Result<int> listen_at(const std::string& address, int port) {
  std::string problem;
  const Addresses found = resolve(address, port, SOCK_STREAM, problem);
  int code = 0;
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    Socket socket(*at);
    const int on = 1;
    if (socket.get() >= 0) setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (socket.get() >= 0 && bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        listen(socket.get(), SOMAXCONN) == 0)
      return socket.release();
    code = errno;
  }
  if (code == EADDRINUSE) {
    return failed_error(
        "the store of the ranks cannot listen at {}: the port is in use, by another run or program; choose "
        "another with MASTER_PORT",
        text_of(address, port));
  }
  return failed_error(
      "the store of the ranks cannot listen at {}: {}; MASTER_ADDR must be an address of rank 0's machine",
      text_of(address, port), found ? std::strerror(code) : problem);
}

Result<StorePointer> client(const std::string& address, int port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return StorePointer(c10::make_intrusive<c10d::TCPStore>(address, options));
  } catch (const std::exception& error) {
    return failed_error(
        "the store of the ranks at {} does not answer (MASTER_ADDR and MASTER_PORT name it, rank 0 or the "
        "launcher serves it): {}",
        text_of(address, port), std::string(error.what()).substr(0, 300));
  }
}

}  // namespace

// Shared with the thread, which may outlive the TimedThread.
struct TimedThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> call;  // empty: the thread is idle
  std::exception_ptr thrown;
  bool lost = false, quit = false;

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return call || quit; });
      if (!call) return;
      lock.unlock();
      std::exception_ptr caught;
      try {
        call();
      } catch (...) {
        caught = std::current_exception();
      }
      lock.lock();
      call = nullptr;
      thrown = std::move(caught);
      changed.notify_all();
      if (lost) return;
    }
  }
};

TimedThread::TimedThread()
    : state_(std::make_shared<State>()), thread_([state = state_] { state->serve(); }) {}

TimedThread::~TimedThread() {
  bool busy = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->quit = true;
    busy = static_cast<bool>(state_->call);
    state_->lost |= busy;
  }
  state_->changed.notify_all();
  if (busy)
    thread_.detach();
  else
    thread_.join();
}

TimedThread::End TimedThread::run(std::function<void()> call, std::chrono::milliseconds limit,
                                  const std::function<bool()>& stop) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLook{50};  // between two calls of `stop`
  const auto end = Clock::now() + limit;
  std::unique_lock lock(state_->mutex);
  if (state_->lost) return End::late;
  state_->call = std::move(call);
  state_->changed.notify_all();
  const auto returned = [&] { return !state_->call; };
  while (!returned()) {
    const auto next = stop ? std::min(end, Clock::now() + kLook) : end;
    if (state_->changed.wait_until(lock, next, returned)) break;
    const bool stopped = stop && stop();
    if (!stopped && Clock::now() < end) continue;
    state_->lost = true;
    return stopped ? End::stopped : End::late;
  }
  if (const std::exception_ptr thrown = std::exchange(state_->thrown, nullptr))
    std::rethrow_exception(thrown);
  return End::done;
}

Status enough_descriptors(int count) {
  std::vector<int> opened;
  int problem = 0;
  const int any = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (any < 0) problem = errno;
  for (int i = 1; i < count && problem == 0; ++i) {
    const int one = fcntl(any, F_DUPFD_CLOEXEC, 0);
    if (one < 0)
      problem = errno;
    else
      opened.push_back(one);
  }
  if (any >= 0) close(any);
  for (const int one : opened) close(one);
  if (problem != EMFILE && problem != ENFILE && problem != EINVAL) return {};
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return failed_error(
      "too many open files: the ranks need {} more in each process, and the limit of a process is {}; raise "
      "it, for instance with ulimit -n 4096",
      count, limit.rlim_cur);
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

Result<ServedStore> serve_store(const std::string& address, int port) {
  ASSIGN_OR_RETURN(int listening, listen_at(address, port));
  int bound = 0;
  const std::string at = own_end(listening, &bound);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(bound);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listening;
  const BlockedSignals no_broken_pipes(
      {SIGPIPE});  // a write to a closed socket is only an error of that write
  try {
    const std::string own = address.empty() ? "localhost" : at;
    return ServedStore{c10::make_intrusive<c10d::TCPStore>(own, options), bound};
  } catch (const std::exception& error) {
    return failed_error("the store of the ranks at {} cannot be served: {}", text_of(address, bound),
                        error.what());
  }
}

Result<StorePointer> open_store(const RankInfo& rank_info, std::chrono::milliseconds timeout) {
  if (rank_info.store_is_there || !rank_info.leads()) return connect_store(rank_info, timeout);
  // The store stays until the process ends: other ranks may need it after this rank has left a process group.
  static std::mutex mutex;
  static auto* const served = new std::vector<std::pair<int, StorePointer>>();
  const std::lock_guard lock(mutex);
  for (const auto& [port, store] : *served)
    if (port == rank_info.port) return store;
  std::string at = rank_info.one_machine() ? "127.0.0.1" : address_towards(rank_info.address, rank_info.port);
  // If a machine resolves its own name to a loopback address, listen on all addresses, because the other
  // ranks connect from other machines.
  if (!rank_info.one_machine() && is_loopback(at)) at.clear();
  ASSIGN_OR_RETURN(ServedStore made, serve_store(at, rank_info.port));
  served->emplace_back(rank_info.port, made.store);
  return made.store;
}

Result<StorePointer> connect_store(const RankInfo& rank_info, std::chrono::milliseconds timeout) {
  const bool loopback = rank_info.one_machine() && !rank_info.store_is_there;
  return client(loopback ? "127.0.0.1" : rank_info.address, rank_info.port, timeout);
}

std::string address_towards(const std::string& target, int port) {
  std::string problem;
  const Addresses found = resolve(target, port, SOCK_DGRAM, problem);
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    const Socket socket(*at);
    // No packet is sent: connecting a datagram socket only chooses a route.
    if (socket.get() >= 0 && connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0)
      return own_end(socket.get(), nullptr);
  }
  return {};
}

}  // namespace octavo_train
