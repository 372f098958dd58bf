// A pool of threads that lives as long as the process, and a loop over it.
// SPDX-License-Identifier: MIT
#pragma once

#include <cfenv>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace octavo::cpu {

struct Scratch;

// CPUs this process may run on (cpu/affinity.h).
int available_cpus();
int default_pool_threads();
void set_default_pool_threads(int threads);

// Sets the default floating-point mode while it lives. The caller may have set flush-to-zero, which must not
// change our results.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  unsigned saved_;
#else
  std::fenv_t saved_{};
#endif
};

// A reference to a callable; it must outlive the call.
class BodyRef {
 public:
  template <class Fn>
  requires(!std::is_same_v<std::remove_cvref_t<Fn>, BodyRef>)
      BodyRef(Fn& fn)  // NOLINT(google-explicit-constructor)
      : object_(std::addressof(fn)),
        call_([](void* o, std::int64_t i, Scratch& s) { (*static_cast<Fn*>(o))(i, s); }) {}
  void operator()(std::int64_t i, Scratch& scratch) const { call_(object_, i, scratch); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t, Scratch&);
};

// body(i, scratch) for every i in [0, count), each once, on up to `threads` threads (0: the default), the
// caller's among them; `scratch` is the working memory of the thread that runs it. Returns when all are done.
// While another thread uses the pool, the caller works alone. Denormals are kept and rounding is to nearest
// in `body` whatever the calling thread has set; its own setting is restored.
//
// Memory: the caller's scratch is allocated before the first body runs, so std::bad_alloc means that none has
// run. A worker whose scratch cannot be allocated takes no part. Where a body throws, no further one begins,
// and the first exception leaves parallel_for once every thread has left its body.
void parallel_for(std::int64_t count, int threads, BodyRef body);
// While one lives, threads that have done their part of a job stay awake for half a millisecond: for who has
// many jobs in a row. A sleeping thread takes long to wake, most of all on a virtual machine.
class StayAwake {
 public:
  StayAwake();
  ~StayAwake();
  StayAwake(const StayAwake&) = delete;
  StayAwake& operator=(const StayAwake&) = delete;
};

// Allocates the caller's scratch now: for work that writes before it calls parallel_for.
void reserve_scratch();

}  // namespace octavo::cpu
