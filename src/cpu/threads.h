// A pool of threads that lives as long as the process, and a loop over it.
// SPDX-License-Identifier: MIT
#pragma once

#include <cfenv>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace octavo::cpu {

// CPUs this process may run on.
int available_cpus();
int default_pool_threads();
void set_default_pool_threads(int threads);

// The default floating-point mode while it lives: a caller may have asked for flush-to-zero, our results must
// not.
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
      : object_(std::addressof(fn)), call_([](void* o, std::int64_t i) { (*static_cast<Fn*>(o))(i); }) {}
  void operator()(std::int64_t i) const { call_(object_, i); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t);
};

// body(i) for every i in [0, count), each once, on up to `threads` threads (0: the default), the caller's
// among them. Returns when all are done. While another thread uses the pool, the caller works alone.
// Denormals are kept and rounding is to nearest in `body` whatever the calling thread has set; its own
// setting is restored. The body must not throw.
void parallel_for(std::int64_t count, int threads, BodyRef body);

}  // namespace octavo::cpu
