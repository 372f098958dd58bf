// SPDX-License-Identifier: MIT
#include "train/distributed/pending.h"

#include <ATen/core/ivalue.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace octavo_train {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Pending::Pending() = default;
Pending::Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}
Pending::~Pending() = default;
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;

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
  if (device.is_cpu()) {
    wait_on_host();
  } else {
    wait_on_stream();
  }
}

void Pending::State::wait_on_host() {
  const auto begin = Clock::now();
  if (!done_->is) monitor->await([&] { return done_->is.load(); });
  waited_ += std::chrono::duration<double>(Clock::now() - begin).count();
  try {
    work->wait();
  } catch (const std::exception& error) {
    monitor->blame(first_line(error.what()));
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
    monitor->blame(first_line(error.what()));
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

}  // namespace octavo_train
