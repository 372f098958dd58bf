// What queues note while a trace is on. Queues of threads note a event when it is over; a GPU's note two
// events, which are looked at when the trace is written.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace octavo::offload {

bool tracing();
// Microseconds of the clock that traces use.
double trace_clock();
void record_trace(const std::string& row, const std::string& label, double begin, double end);

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
  void register_source();
  // The first thing in a destructor: nobody asks any more.
  void unregister_source();
};

// Notes the event in which it lives.
class TraceScope {
 public:
  TraceScope(const std::string& row, const char* label)
      : row_(row), label_(label), begin_(label != nullptr && tracing() ? trace_clock() : -1.0) {}
  ~TraceScope() {
    if (begin_ >= 0.0) record_trace(row_, label_, begin_, trace_clock());
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  const std::string& row_;
  const char* label_;
  double begin_;
};

}  // namespace octavo::offload
