// A pool of threads that lives as long as the process, and a parallel loop over it.
// SPDX-License-Identifier: MIT
#pragma once

#include <cfenv>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace octavo::cpu {

struct Scratch;

// Returns the number of CPUs that this process may use (cpu/affinity.h).
int available_cpus();
int default_pool_threads();
void set_default_pool_threads(int threads);

// Sets the default floating-point mode while it lives. A caller may have set flush-to-zero, which must not
// change the results.
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

// Calls body(i, scratch) exactly once for every i in [0, count) on up to `threads` threads (0: the default),
// including the caller's. `scratch` is the working memory of the thread that runs it. The function returns
// when all calls are done. While another thread uses the pool, the caller works alone. Denormals are kept and
// rounding is to nearest in `body` whatever the calling thread has set; its own setting is restored.
//
// The caller's scratch is allocated before the first call, so std::bad_alloc means that no call was made. A
// worker whose scratch cannot be allocated is not used. If a call throws, no further one begins, and
// parallel_for throws the first exception after every thread has left its body.
void parallel_for(std::int64_t count, int threads, BodyRef body);
// While an object lives, workers spin for half a millisecond after a job. Use it around many back-to-back
// jobs: a sleeping thread takes long to wake, especially on a virtual machine.
class StayAwake {
 public:
  StayAwake();
  ~StayAwake();
  StayAwake(const StayAwake&) = delete;
  StayAwake& operator=(const StayAwake&) = delete;
};

// Allocates the caller's scratch now, for work that writes before it calls parallel_for.
void reserve_scratch();

}  // namespace octavo::cpu
