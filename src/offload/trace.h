// Trace events of queues. A thread's queue records an event when it ends. A GPU's queue records CUDA events
// and reads them when the trace is written.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace octavo::offload {

bool tracing();
// Returns the time of the traces' clock in microseconds.
double trace_clock();
void record_trace(const std::string& row, const std::string& label, double begin, double end);

// Buffers trace events. write_offload_trace() calls collect() on every live source; a derived destructor must
// call it too.
class TraceSource {
 public:
  TraceSource() = default;
  TraceSource(const TraceSource&) = delete;
  TraceSource& operator=(const TraceSource&) = delete;
  // Records the buffered events, after waiting for their ends.
  virtual void collect() = 0;

 protected:
  ~TraceSource() = default;
  // Called at the end of a constructor. Other threads may call collect() from now on.
  void register_source();
  // Called at the beginning of a destructor. No other thread calls collect() afterwards.
  void unregister_source();
};

// Records an event that lasts as long as the object.
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
