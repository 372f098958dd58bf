// SPDX-License-Identifier: MIT
#include "train/world/world.h"

#include "train/world/exchange.h"
#include "train/world/group.h"
#include "train/world/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace octavo::train {
namespace {

using GroupPointer = c10::intrusive_ptr<c10d::Backend>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

std::string one_line(const std::string& text) { return text.substr(0, text.find('\n')); }

void finish(const WorkPointer& work) {
  try {
    work->wait();
  } catch (const std::exception& error) {
    throw WorldError("another rank is gone or has not come: " + one_line(error.what()));
  }
}

c10d::ReduceOp operation(World::Reduce how) {
  return how == World::Reduce::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
}

}  // namespace

struct Pending::State {
  WorkPointer work;
  std::vector<torch::Tensor> tensors;  // alive until the work is done
};

Pending::Pending() = default;
Pending::Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}
Pending::~Pending() = default;
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;

void Pending::wait() {
  if (state_) finish(state_->work);
}

struct World::Impl {
  Place place;
  torch::Device device{torch::kCPU};
  StorePointer store;
  GroupPointer tensors, hosts;
  std::unique_ptr<Exchange> exchange;
  CallList calls;
  Traffic traffic;

  // Notes an operation on a tensor, and refuses one that a group would get wrong in silence.
  void note(const char* name, const torch::Tensor& tensor, int root = -1) {
    TORCH_CHECK(tensor.is_contiguous(), name, ": the tensor of ", tensor.sizes(), " is not contiguous");
    TORCH_CHECK(tensor.device().type() == device.type(), name, ": the tensor is on ", tensor.device(),
                ", the ranks' tensors are on ", device);
    calls.add(std::string(name) + " of " + std::to_string(tensor.numel()) + " " +
              c10::toString(tensor.scalar_type()) + (root < 0 ? "" : " from rank " + std::to_string(root)));
  }
  void sent(const torch::Tensor& tensor, double share) {
    traffic.bytes += static_cast<std::int64_t>(static_cast<double>(tensor.nbytes()) * share);
  }
  [[nodiscard]] double others_part() const { return double(place.ranks - 1) / place.ranks; }

  template <class Start>
  Pending start(std::vector<torch::Tensor> used, Start&& begin) {
    auto state = std::make_shared<Pending::State>();
    try {
      state->work = begin();
    } catch (const std::exception& error) {
      throw WorldError("another rank is gone: " + one_line(error.what()));
    }
    state->tensors = std::move(used);
    return Pending(std::move(state));
  }
};

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::~World() = default;

const Place& World::place() const { return impl_->place; }

std::unique_ptr<World> World::alone() { return std::unique_ptr<World>(new World(std::make_unique<Impl>())); }

Result<std::unique_ptr<World>> World::join(const Place& place, const torch::Device& device,
                                           const WorldOptions& options) {
  if (!place.grouped()) return alone();
  static std::atomic<int> joined{0};  // a process may join a world after another
  auto impl = std::make_unique<Impl>();
  impl->place = place;
  impl->device = device;
  Result<StorePointer> store = open_store(place, options.timeout);
  if (!store.ok()) return store.status();
  const std::string prefix =
      "octavo/" + std::to_string(place.restart) + "/" + std::to_string(joined.fetch_add(1)) + "/";
  impl->store = c10::make_intrusive<c10d::PrefixStore>(prefix, *store);
  try {
    GroupPlan plan;
    plan.rank = place.rank;
    plan.ranks = place.ranks;
    plan.timeout = options.timeout;
    plan.address = place.one_machine() ? "127.0.0.1" : address_towards(place.address, place.port);
    plan.threads = 1;
    plan.store = c10::make_intrusive<c10d::PrefixStore>("hosts", impl->store);
    impl->hosts = gloo_group(plan);
    plan.threads = 2;
    plan.store = c10::make_intrusive<c10d::PrefixStore>("tensors", impl->store);
    impl->tensors = gloo_group(plan);
  } catch (const std::exception& error) {
    return Status::failed("the ranks did not find each other: " + one_line(error.what()));
  }
  impl->exchange = std::make_unique<Exchange>(impl->hosts, finish);
  return std::unique_ptr<World>(new World(std::move(impl)));
}

Pending World::all_reduce(const torch::Tensor& tensor, Reduce how) {
  if (!grouped()) return {};
  impl_->note(how == Reduce::sum ? "all_reduce" : "all_reduce (max)", tensor);
  impl_->sent(tensor, 2 * impl_->others_part());
  return impl_->start({tensor}, [&] {
    c10d::AllreduceOptions options;
    options.reduceOp = operation(how);
    std::vector<torch::Tensor> tensors{tensor};
    return impl_->tensors->allreduce(tensors, options);
  });
}

Pending World::reduce_scatter(const torch::Tensor& part, const torch::Tensor& whole) {
  TORCH_CHECK(part.is_contiguous() && part.numel() * ranks() == whole.numel() &&
                  part.scalar_type() == whole.scalar_type(),
              "reduce_scatter: a part of ", part.numel(), " elements for ", ranks(), " ranks of ",
              whole.numel());
  if (!grouped()) {
    if (part.data_ptr() != whole.data_ptr()) part.copy_(whole.view_as(part));
    return {};
  }
  impl_->note("reduce_scatter", whole);
  impl_->sent(whole, impl_->others_part());
  return impl_->start({part, whole}, [&] {
    torch::Tensor output = part, input = whole;
    return impl_->tensors->_reduce_scatter_base(output, input);
  });
}

Pending World::all_gather(const torch::Tensor& whole, const torch::Tensor& part) {
  TORCH_CHECK(part.is_contiguous() && part.numel() * ranks() == whole.numel() &&
                  part.scalar_type() == whole.scalar_type(),
              "all_gather: a part of ", part.numel(), " elements for ", ranks(), " ranks of ", whole.numel());
  if (!grouped()) {
    if (part.data_ptr() != whole.data_ptr()) whole.copy_(part.view_as(whole));
    return {};
  }
  impl_->note("all_gather", whole);
  impl_->sent(whole, impl_->others_part());
  return impl_->start({whole, part}, [&] {
    torch::Tensor output = whole, input = part;
    return impl_->tensors->_allgather_base(output, input);
  });
}

Pending World::reduce(const torch::Tensor& tensor, int root) {
  if (!grouped()) return {};
  impl_->note("reduce", tensor, root);
  impl_->sent(tensor, impl_->others_part());
  return impl_->start({tensor}, [&] {
    c10d::ReduceOptions options;
    options.rootRank = root;
    std::vector<torch::Tensor> tensors{tensor};
    return impl_->tensors->reduce(tensors, options);
  });
}

Pending World::broadcast(const torch::Tensor& tensor, int root) {
  if (!grouped()) return {};
  impl_->note("broadcast", tensor, root);
  impl_->sent(tensor, impl_->others_part());
  return impl_->start({tensor}, [&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<torch::Tensor> tensors{tensor};
    return impl_->tensors->broadcast(tensors, options);
  });
}

Traffic World::take_traffic() { return std::exchange(impl_->traffic, Traffic{}); }

void World::sum(std::span<double> values) {
  if (!grouped()) return;
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  const auto everybody = impl_->exchange->all("sum of " + std::to_string(values.size()), bytes, impl_->calls);
  std::vector<double> one(values.size());
  std::fill(values.begin(), values.end(), 0.0);
  for (const std::string& each : everybody) {
    std::memcpy(one.data(), each.data(), each.size());
    for (std::size_t i = 0; i < one.size(); ++i) values[i] += one[i];
  }
}

void World::max(std::span<std::int64_t> values) {
  if (!grouped()) return;
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  const auto everybody = impl_->exchange->all("max of " + std::to_string(values.size()), bytes, impl_->calls);
  std::vector<std::int64_t> one(values.size());
  for (const std::string& each : everybody) {
    std::memcpy(one.data(), each.data(), each.size());
    for (std::size_t i = 0; i < one.size(); ++i) values[i] = std::max(values[i], one[i]);
  }
}

std::vector<std::string> World::gather(const std::string& mine) {
  if (!grouped()) return {mine};
  return impl_->exchange->all("gather", mine, impl_->calls);
}

std::string World::share(const std::string& text) {
  if (!grouped()) return text;
  return impl_->exchange->all("share", leads() ? text : std::string(), impl_->calls).front();
}

Status World::agree(const Status& mine) {
  if (!grouped()) return mine;
  const auto code = static_cast<char>(mine.code());
  const auto everybody = impl_->exchange->all("agree", mine.ok() ? "" : code + mine.message(), impl_->calls);
  for (std::size_t rank = 0; rank < everybody.size(); ++rank) {
    if (everybody[rank].empty()) continue;
    return {static_cast<StatusCode>(everybody[rank][0]),
            "rank " + std::to_string(rank) + ": " + everybody[rank].substr(1)};
  }
  return {};
}

void World::doing(const std::string& /*what*/) {}
void World::fail(const std::string& /*reason*/) {}

}  // namespace octavo::train
