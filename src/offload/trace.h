// What queues note while a trace is on. Queues of threads note a stretch when it is over; a GPU's note two
// events, which are looked at when the trace is written.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace octavo::offload {

bool tracing();
// Microseconds of the clock that traces use.
double trace_clock();
void note(const std::string& row, const std::string& label, double begin, double end);

// Somebody who notes later. Writing a trace asks all that exist; they must ask themselves before they go.
class TraceSource {
 public:
  TraceSource() = default;
  TraceSource(const TraceSource&) = delete;
  TraceSource& operator=(const TraceSource&) = delete;
  // Notes what it has kept and forgets it. Waits for what is not over.
  virtual void collect() = 0;

 protected:
  ~TraceSource() = default;
  // The last thing in a constructor: from now on it may be asked.
  void enter();
  // The first thing in a destructor: nobody asks any more.
  void leave();
};

// Notes the stretch in which it lives.
class Noted {
 public:
  Noted(const std::string& row, const char* label)
      : row_(row), label_(label), begin_(label != nullptr && tracing() ? trace_clock() : -1.0) {}
  ~Noted() {
    if (begin_ >= 0.0) note(row_, label_, begin_, trace_clock());
  }
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;

 private:
  const std::string& row_;
  const char* label_;
  double begin_;
};

}  // namespace octavo::offload
