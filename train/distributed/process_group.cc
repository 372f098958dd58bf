// Implements the operations of process_group.h, and the measurement of the time of queued work.
// SPDX-License-Identifier: MIT
#include "train/distributed/process_group.h"

#include "train/distributed/exchange.h"
#include "train/distributed/rendezvous.h"
#include "train/distributed/watchdog.h"

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <utility>

namespace octavo_train {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

using GroupPointer = c10::intrusive_ptr<c10d::Backend>;

c10d::ReduceOp operation(ProcessGroup::Reduce how) {
  return how == ProcessGroup::Reduce::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
}

void check_part(const char* name, const torch::Tensor& part, const torch::Tensor& whole, int ranks) {
  TORCH_CHECK(part.is_contiguous() && part.numel() * ranks == whole.numel() &&
                  part.scalar_type() == whole.scalar_type(),
              name, ": a part of ", part.numel(), " elements for ", ranks, " ranks of ", whole.numel());
}

// Calls shutdown(), which newer versions of LibTorch expect at an orderly end.
template <class Group>
void shut_down(Group& group) {
  if constexpr (requires { group.shutdown(); }) group.shutdown();
}

}  // namespace

struct Pending::State {
  State(c10::intrusive_ptr<c10d::Work> queued, std::vector<torch::Tensor> used, const torch::Device& where,
        std::shared_ptr<Watchdog> watched);

  // May be called again: `afterwards` runs only once.
  void wait();
  // Returns true if the work was waited for and is done, so that its time is known.
  [[nodiscard]] bool is_over();
  // For work that was waited for: the seconds of the operation, and how many of them were not hidden by other
  // work. Both wait for the work.
  [[nodiscard]] double seconds();
  [[nodiscard]] double waited();

  c10::intrusive_ptr<c10d::Work> work;
  std::vector<torch::Tensor> tensors;  // kept alive until the work is done
  torch::Device device;
  std::shared_ptr<Watchdog> monitor;
  std::function<void()> afterwards;  // the remaining host work after the operation

 private:
  using Clock = std::chrono::steady_clock;
  void wait_on_host();
  void wait_on_stream();

  // State on the CPU, shared with the completion callback, which may run after this object is destroyed.
  struct Done {
    std::atomic<bool> is{false};
    Clock::time_point at;
  };
  std::shared_ptr<Done> done_;
  Clock::time_point begin_;
  double waited_ = 0;
  // Events on a GPU, before and after the first wait of the current stream.
  std::optional<c10::Event> before_, after_;
};

// Waits for work of the hosts' group.
void wait_for_hosts(const c10::intrusive_ptr<c10d::Work>& work, const std::shared_ptr<Watchdog>& monitor);

void Pending::wait() {
  if (state_) state_->wait();
}

Pending::State::State(c10::intrusive_ptr<c10d::Work> queued, std::vector<torch::Tensor> used,
                      const torch::Device& where, std::shared_ptr<Watchdog> watched)
    : work(std::move(queued)), tensors(std::move(used)), device(where), monitor(std::move(watched)) {
  if (!device.is_cpu()) return;
  begin_ = Clock::now();
  done_ = std::make_shared<Done>();
  work->getFuture()->addCallback([done = done_, watching = monitor](c10::ivalue::Future&) {
    done->at = Clock::now();
    done->is = true;
    watching->wake();
  });
}

void Pending::State::wait() {
  if (device.is_cpu())
    wait_on_host();
  else
    wait_on_stream();
}

void Pending::State::wait_on_host() {
  const auto begin = Clock::now();
  if (!done_->is) monitor->await([&] { return done_->is.load(); });
  waited_ += std::chrono::duration<double>(Clock::now() - begin).count();
  try {
    work->wait();
  } catch (const std::exception& error) {
    monitor->throw_failure(first_line(error.what()));
  }
  if (afterwards) std::exchange(afterwards, nullptr)();
  tensors.clear();
}

void Pending::State::wait_on_stream() {
  const auto stream = c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
  const bool first = !before_;
  const auto event = [&] { return c10::Event(device.type(), c10::EventFlag::BACKEND_DEFAULT); };
  if (first) before_.emplace(event()).record(stream);
  try {
    work->wait();
  } catch (const std::exception& error) {
    monitor->throw_failure(first_line(error.what()));
  }
  if (first) after_.emplace(event()).record(stream);
  tensors.clear();  // freed memory is reused in stream order, after the work
}

bool Pending::State::is_over() { return device.is_cpu() ? done_->is.load() : after_ && after_->query(); }

double Pending::State::seconds() {
  if (device.is_cpu()) return std::chrono::duration<double>(done_->at - begin_).count();
  if (after_) after_->synchronize();  // getDuration() needs completed work
  return static_cast<double>(work->getDuration()) / 1e3;
}

double Pending::State::waited() {
  if (device.is_cpu() || !after_) return waited_;
  after_->synchronize();
  return before_->elapsedTime(*after_) / 1e3;
}

void wait_for_hosts(const c10::intrusive_ptr<c10d::Work>& work, const std::shared_ptr<Watchdog>& monitor) {
  Pending(std::make_shared<Pending::State>(work, std::vector<torch::Tensor>(), torch::kCPU, monitor)).wait();
}

struct ProcessGroup::Impl {
  RankInfo rank_info;
  torch::Device device{torch::kCPU};
  std::shared_ptr<Watchdog> monitor;
  GroupPointer tensors, hosts;
  std::unique_ptr<Exchange> exchange;
  CallList calls;
  std::deque<std::shared_ptr<Pending::State>> recent;  // operations whose time is not in `traffic` yet
  Traffic traffic;
  std::optional<RankFailure> common;  // the error of the last call, if all ranks have it

  // Records an operation on a tensor, of which this rank sends `share`, and rejects a tensor with which a
  // group would silently compute wrong results.
  void note(const char* name, const torch::Tensor& tensor, double share, int root = -1) {
    TORCH_CHECK(tensor.is_contiguous(), name, ": the tensor of ", tensor.sizes(), " is not contiguous");
    TORCH_CHECK(tensor.device().type() == device.type(), name, ": the tensor is on ", tensor.device(),
                ", the ranks' tensors are on ", device);
    calls.add(fmt::format("{} of {} {}{}", name, tensor.numel(), c10::toString(tensor.scalar_type()),
                          root < 0 ? "" : fmt::format(" from rank {}", root)));
    monitor->called();
    traffic.bytes += static_cast<std::int64_t>(static_cast<double>(tensor.nbytes()) * share);
  }
  [[nodiscard]] double others_part() const { return double(rank_info.ranks - 1) / rank_info.ranks; }

  void measure_first() {
    const double seconds = recent.front()->seconds();
    traffic.seconds += seconds;
    // The host may notice the end a little later.
    traffic.waited += std::min(recent.front()->waited(), seconds);
    recent.pop_front();
  }

  template <class Start>
  Pending start(std::vector<torch::Tensor> used, Start&& begin) {
    std::shared_ptr<Pending::State> state;
    try {
      state = std::make_shared<Pending::State>(begin(), std::move(used), device, monitor);
    } catch (const c10::DistError& error) {
      monitor->throw_failure(error.what_without_backtrace());
    }
    recent.push_back(state);
    while (recent.size() > 256 && recent.front()->is_over()) measure_first();
    return Pending(std::move(state));
  }

  // Implements reduce_scatter with all_reduce, because gloo has no such operation. The sums are bitwise those
  // of all_reduce.
  Pending reduce_scatter_on_host(const torch::Tensor& part, const torch::Tensor& whole) {
    const torch::Tensor mine = whole.view(-1).narrow(0, part.numel() * rank_info.rank, part.numel());
    const bool in_place = part.data_ptr() == mine.data_ptr();
    const torch::Tensor summed = in_place ? whole : whole.clone();
    Pending pending = start({summed}, [&] {
      std::vector<torch::Tensor> given{summed};
      return tensors->allreduce(given);
    });
    if (!in_place) {
      recent.back()->afterwards = [part, summed, at = part.numel() * rank_info.rank] {
        part.view(-1).copy_(summed.view(-1).narrow(0, at, part.numel()));
      };
    }
    return pending;
  }

  // Returns every rank's values, by rank.
  template <class T>
  std::vector<T> values_of_all(const char* call, std::span<T> mine) {
    const std::string_view bytes(reinterpret_cast<const char*>(mine.data()), mine.size_bytes());
    std::vector<T> out;
    for (const std::string& each : gather_bytes(fmt::format("{} of {}", call, mine.size()), bytes)) {
      std::vector<T> one(mine.size());
      std::memcpy(one.data(), each.data(), each.size());
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }

  // Returns every rank's bytes, by rank.
  std::vector<std::string> gather_bytes(const std::string& call, std::string_view mine) {
    monitor->called();
    try {
      return exchange->all(call, mine, calls);
    } catch (const ProcessGroupError& error) {
      if (error.failure().found_by == RankFailure::FoundBy::all) common = error.failure();
      throw;
    }
  }
};

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ProcessGroup::~ProcessGroup() {
  if (!grouped()) return;
  const bool idle = std::all_of(impl_->recent.begin(), impl_->recent.end(),
                                [](const auto& each) { return each->work->isCompleted(); });
  if (!idle || std::uncaught_exceptions() > 0) fail("it ended in the middle of a step");
  if (impl_->monitor->failed()) {
    // A group's destructor waits for its operations, which the other ranks never complete. So the groups are
    // leaked.
    impl_->hosts.release();
    impl_->tensors.release();
    impl_->exchange.release();  // it owns a group too
  } else {
    shut_down(*impl_->tensors);
  }
  impl_->monitor->leave();
}

const RankInfo& ProcessGroup::rank_info() const { return impl_->rank_info; }

std::unique_ptr<ProcessGroup> ProcessGroup::alone() {
  return std::unique_ptr<ProcessGroup>(new ProcessGroup(std::make_unique<Impl>()));
}

std::unique_ptr<ProcessGroup> ProcessGroup::pretend(int ranks) {
  auto out = alone();
  out->impl_->rank_info.ranks = out->impl_->rank_info.local_ranks = ranks;
  return out;
}

Result<std::unique_ptr<ProcessGroup>> ProcessGroup::join(const RankInfo& rank_info,
                                                         const torch::Device& device,
                                                         const ProcessGroupOptions& options,
                                                         std::optional<RankFailure>* failure) {
  if (!rank_info.grouped()) return alone();
  std::optional<RankFailure> common;
  Result<Meeting> met = rendezvous(rank_info, device, options, common);
  if (failure != nullptr) *failure = common;
  if (!met.ok()) return met.status();
  auto impl = std::make_unique<Impl>();
  impl->rank_info = rank_info;
  impl->device = device;
  impl->monitor = met->monitor;
  impl->tensors = met->tensors;
  impl->hosts = met->hosts;
  impl->exchange = std::make_unique<Exchange>(
      impl->hosts, [monitor = impl->monitor](const auto& work) { wait_for_hosts(work, monitor); });
  auto process_group = std::unique_ptr<ProcessGroup>(new ProcessGroup(std::move(impl)));
  if (device.is_cpu()) return process_group;
  try {
    // NCCL connects at the first call. This call makes its errors appear now.
    process_group->all_reduce(torch::ones({1}, device)).wait();
    (void)process_group->take_traffic();
  } catch (const std::exception& error) {
    const std::string what = error.what(), reason = what.substr(0, what.find("Exception raised from"));
    process_group->fail("NCCL cannot be used: " + reason);
    return failed_error("NCCL cannot be used on {}: {}", device.str(), reason);
  }
  return process_group;
}

Pending ProcessGroup::all_reduce(const torch::Tensor& tensor, Reduce how) {
  if (!grouped()) return {};
  impl_->note(how == Reduce::sum ? "all_reduce" : "all_reduce (max)", tensor, 2 * impl_->others_part());
  return impl_->start({tensor}, [&] {
    c10d::AllreduceOptions options;
    options.reduceOp = operation(how);
    std::vector<torch::Tensor> tensors{tensor};
    return impl_->tensors->allreduce(tensors, options);
  });
}

Pending ProcessGroup::reduce_scatter(const torch::Tensor& part, const torch::Tensor& whole) {
  check_part("reduce_scatter", part, whole, ranks());
  if (!grouped()) {
    if (ranks() == 1 && part.data_ptr() != whole.data_ptr()) part.copy_(whole.view_as(part));
    return {};
  }
  impl_->note("reduce_scatter", whole, impl_->others_part());
  if (impl_->device.is_cpu()) return impl_->reduce_scatter_on_host(part, whole);
  return impl_->start({part, whole}, [&] {
    torch::Tensor output = part, input = whole;
    return impl_->tensors->_reduce_scatter_base(output, input);
  });
}

Pending ProcessGroup::all_gather(const torch::Tensor& whole, const torch::Tensor& part) {
  check_part("all_gather", part, whole, ranks());
  if (!grouped()) {
    if (ranks() == 1 && part.data_ptr() != whole.data_ptr()) whole.copy_(part.view_as(whole));
    return {};
  }
  impl_->note("all_gather", whole, impl_->others_part());
  return impl_->start({whole, part}, [&] {
    torch::Tensor output = whole, input = part;
    return impl_->tensors->_allgather_base(output, input);
  });
}

Pending ProcessGroup::reduce(const torch::Tensor& tensor, int root) {
  if (!grouped()) return {};
  impl_->note("reduce", tensor, impl_->others_part(), root);
  return impl_->start({tensor}, [&] {
    c10d::ReduceOptions options;
    options.rootRank = root;
    std::vector<torch::Tensor> tensors{tensor};
    return impl_->tensors->reduce(tensors, options);
  });
}

Pending ProcessGroup::broadcast(const torch::Tensor& tensor, int root) {
  if (!grouped()) return {};
  impl_->note("broadcast", tensor, impl_->others_part(), root);
  return impl_->start({tensor}, [&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<torch::Tensor> tensors{tensor};
    return impl_->tensors->broadcast(tensors, options);
  });
}

Traffic ProcessGroup::take_traffic() {
  for (const auto& each : impl_->recent) each->wait();
  while (!impl_->recent.empty()) impl_->measure_first();
  return std::exchange(impl_->traffic, Traffic{});
}

void ProcessGroup::sum(std::span<double> values) {
  if (!grouped()) return;
  const auto each = impl_->values_of_all("sum", values);
  std::fill(values.begin(), values.end(), 0.0);
  for (std::size_t i = 0; i < each.size(); ++i) values[i % values.size()] += each[i];
}

void ProcessGroup::max(std::span<std::int64_t> values) {
  if (!grouped()) return;
  const auto each = impl_->values_of_all("max", values);
  for (std::size_t i = 0; i < each.size(); ++i)
    values[i % values.size()] = std::max(values[i % values.size()], each[i]);
}

std::vector<std::string> ProcessGroup::gather(const std::string& mine) {
  if (!grouped()) return {mine};
  return impl_->gather_bytes("gather", mine);
}

std::string ProcessGroup::broadcast_text(const std::string& text) {
  if (!grouped()) return text;
  return impl_->gather_bytes("broadcast_text", leads() ? text : std::string()).front();
}

Status ProcessGroup::first_error(const Status& mine) {
  if (!grouped()) return mine;
  const auto code = static_cast<char>(mine.code());
  const auto errors = impl_->gather_bytes("first_error", mine.ok() ? "" : code + mine.message());
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    const int number = static_cast<int>(rank);
    const std::string text = rank_text(number) + ": " + errors[rank].substr(1);
    note_common_failure({number, RankFailure::FoundBy::all, text});
    return {static_cast<StatusCode>(errors[rank][0]), text};
  }
  impl_->common.reset();
  return {};
}

void ProcessGroup::set_activity(const std::string& what) {
  if (impl_->monitor) impl_->monitor->set_activity(what);
}

void ProcessGroup::set_error_suffix(const std::string& note) {
  if (impl_->monitor) impl_->monitor->set_error_suffix(note);
}

LocalWork ProcessGroup::local_work(const std::string& what, std::uint64_t bytes) const {
  return {impl_->monitor, what, bytes};
}

void ProcessGroup::fail(const std::string& reason) {
  const RankFailure own{rank(), RankFailure::FoundBy::itself, rank_text(rank()) + ": " + reason};
  fail(impl_->common.value_or(own));
}

void ProcessGroup::fail(const RankFailure& failure) {
  if (impl_->monitor) impl_->monitor->fail(failure);
}

void ProcessGroup::note_common_failure(RankFailure failure) { impl_->common = std::move(failure); }

std::optional<RankFailure> ProcessGroup::failure() const {
  if (impl_->common || !impl_->monitor) return impl_->common;
  return impl_->monitor->failure();
}

LocalWork::LocalWork(std::shared_ptr<Watchdog> monitor, const std::string& what, std::uint64_t bytes)
    : monitor_(std::move(monitor)) {
  if (monitor_) monitor_->begin_local_work(what, bytes);
}

LocalWork::~LocalWork() {
  if (monitor_) monitor_->end_local_work();
}

}  // namespace octavo_train
