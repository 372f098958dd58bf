// Writes the events of offloaded steps as Chrome trace JSON, one row per queue.
// SPDX-License-Identifier: MIT
#include "offload/trace.h"

#include <octavo/offload.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <fstream>
#include <locale>
#include <map>
#include <mutex>
#include <vector>

namespace octavo {
namespace offload {
namespace {

struct TraceEvent {
  std::string label;
  double begin, end;
};

struct Trace {
  std::atomic<bool> on{false};
  std::mutex mutex;
  std::map<std::string, std::vector<TraceEvent>> rows;
  std::mutex sources_mutex;  // held during collect(), which locks `mutex`
  std::vector<TraceSource*> sources;
};
Trace& trace() {
  static auto* const all = new Trace;  // never destroyed: queues may outlive statics
  return *all;
}

// JSON has a decimal point in every locale.
std::string text(double microseconds) {
  std::array<char, 64> out{};
  const auto end =
      std::to_chars(out.data(), out.data() + out.size(), microseconds, std::chars_format::fixed, 3);
  return end.ec == std::errc() ? std::string(out.data(), end.ptr) : "0.000";
}

// Returns a JSON string. Labels may be the caller's.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

// Rows are in the order of their names. Times count from the first event.
void write_rows(std::ostream& file, const std::map<std::string, std::vector<TraceEvent>>& rows) {
  double first = 0.0;
  bool any = false;
  for (const auto& [row, events] : rows) {
    for (const TraceEvent& event : events) {
      first = any ? std::min(first, event.begin) : event.begin;
      any = true;
    }
  }
  file << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  file << R"({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "octavo offload"}})";
  int id = 0;
  for (const auto& [row, events] : rows) {
    ++id;
    file << ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": " << id
         << R"(, "name": "thread_name", "args": {"name": )" << quoted(row) << "}}";
    for (const TraceEvent& event : events) {
      file << ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": " << id << ", \"name\": " << quoted(event.label)
           << ", \"ts\": " << text(event.begin - first)
           << ", \"dur\": " << text(std::max(0.0, event.end - event.begin)) << "}";
    }
  }
  file << "\n]}\n";
}

}  // namespace

bool tracing() { return trace().on.load(std::memory_order_relaxed); }

double trace_clock() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void record_trace(const std::string& row, const std::string& label, double begin, double end) {
  const std::lock_guard lock(trace().mutex);
  trace().rows[row].push_back({label, begin, end});
}

void TraceSource::register_source() {
  const std::lock_guard lock(trace().sources_mutex);
  trace().sources.push_back(this);
}
void TraceSource::unregister_source() {
  const std::lock_guard lock(trace().sources_mutex);
  std::erase(trace().sources, this);
}

}  // namespace offload

void trace_offload(bool on) { offload::trace().on = on; }

void note_offload(const std::string& row, const std::string& label, double begin, double end) {
  if (offload::tracing()) offload::record_trace(row, label, begin, end);
}

Status write_offload_trace(const std::string& path) {
  {
    const std::lock_guard lock(offload::trace().sources_mutex);
    for (offload::TraceSource* source : offload::trace().sources) source->collect();
  }
  std::map<std::string, std::vector<offload::TraceEvent>> rows;
  {
    const std::lock_guard lock(offload::trace().mutex);
    rows.swap(offload::trace().rows);
  }
  std::ofstream file(path);
  file.imbue(std::locale::classic());
  offload::write_rows(file, rows);
  file.close();
  return file ? Status() : Status::failed("[offload] trace: '" + path + "' cannot be written");
}

}  // namespace octavo
