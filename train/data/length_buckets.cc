// See length_buckets.h. Changing these constants breaks resuming: a resumed run would get other batches.
// SPDX-License-Identifier: MIT
#include "train/data/length_buckets.h"

#include "train/base/numbers.h"
#include "train/base/parallel_for.h"
#include "train/data/mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

namespace octavo_train {
namespace {

// Lengths are changed by up to a sixteenth before they are sorted. This costs a few percent more padding and
// gives each sample other neighbours in each epoch.
constexpr std::uint64_t kUnit = 1 << 16, kChange = kUnit / 16;
constexpr double kTicks = 1e6;  // ticks per second, for the sort; integers are identical on every machine
constexpr double kMostTicks = 0x1p44;    // keeps ticks x (kUnit + kChange) within 64 bits
constexpr std::size_t kWindowsKept = 4;  // two that workers read from, and two of another stage
constexpr unsigned kMostThreads = 16;

struct Clip {
  std::uint64_t key = 0;     // the sort key
  std::uint32_t offset = 0;  // the index of its draw in the window
  ClipCost cost;
};

std::string number(double value) { return decimal_text(value, std::chars_format::general, 6); }

// A batch while clips are added to it.
struct Growing {
  std::int64_t rows = 0, cells = 0;
  double longest = 0, seconds = 0;

  [[nodiscard]] bool has_room(const ClipCost& next, const BatchBudget& budget) const {
    if (rows == 0) return true;
    if (budget.rows && rows >= *budget.rows) return false;
    if (budget.cells && next.cells > *budget.cells - cells) return false;
    return !budget.seconds ||
           static_cast<double>(rows + 1) * std::max(longest, next.seconds) <= *budget.seconds;
  }
  void add(const ClipCost& next) {
    ++rows;
    cells += next.cells;
    longest = std::max(longest, next.seconds);
    seconds += next.seconds;
  }
  [[nodiscard]] double padded() const { return static_cast<double>(rows) * longest; }
};

// Returns the number of threads that plan windows.
std::uint64_t planning_threads() { return std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads); }

}  // namespace

bool BatchBudget::fits(const ClipCost& cost) const {
  return !(seconds && cost.seconds > *seconds) && !(cells && cost.cells > *cells);
}

std::string BatchBudget::excess_text(const ClipCost& cost) const {
  if (seconds && cost.seconds > *seconds)
    return number(cost.seconds) + " s, but a batch has " + number(*seconds) + " s (data.batch_seconds)";
  return fmt::format("{} cells of the loss, but a batch has {} (data.batch_lattice_cells)", cost.cells,
                     cells.value_or(0));
}

// The draws begin … end - 1, which occupy the positions of the same numbers.
struct LengthBuckets::Bounds {
  std::uint64_t begin = 0, end = 0;
};

struct LengthBuckets::Window {
  Bounds bounds;
  std::vector<std::uint32_t> draws;  // indices by position; both are relative to the window's begin
  std::vector<std::uint32_t> ends;   // end positions of its batches, relative to the window's begin
  std::vector<Growing> batches;

  // Returns the index of the batch that contains this position.
  [[nodiscard]] std::size_t batch_at(std::uint64_t position) const {
    const auto at = static_cast<std::uint32_t>(position - bounds.begin);
    return static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
  }
};

// The windows that were requested last. If another thread is planning a window, callers wait with a condition
// variable instead of a future. A future's std::call_once passes its function through a thread-local
// variable. If a toolchain links LibTorch and this program with separate standard libraries, one may read the
// other's variable and crash.
struct LengthBuckets::Kept {
  struct Planned {
    bool done = false;
    std::shared_ptr<const Window> window;
    std::exception_ptr error;  // instead of a window
  };
  struct Entry {
    Order order;
    std::uint64_t begin = 0;
    std::shared_ptr<Planned> planned;
  };
  std::mutex mutex;
  std::condition_variable done;
  std::deque<Entry> entries;
};

LengthBuckets::LengthBuckets(Cost cost, const BatchBudget& budget, std::int64_t window)
    : cost_(std::move(cost)),
      budget_(budget),
      window_(static_cast<std::uint64_t>(
          std::min<std::int64_t>(window, std::numeric_limits<std::int32_t>::max()))),
      kept_(std::make_unique<Kept>()) {}
LengthBuckets::~LengthBuckets() = default;

// Divides an epoch into as few windows as possible. Window i of n begins at about samples * i / n.
LengthBuckets::Bounds LengthBuckets::bounds(const Order& order, std::uint64_t position) const {
  const auto samples = static_cast<std::uint64_t>(order.samples());
  const std::uint64_t windows = (samples + window_ - 1) / window_;
  // The first `larger` windows have `small` + 1 draws, the others `small`.
  const std::uint64_t small = samples / windows, larger = samples % windows;
  const std::uint64_t epoch = order.start() + order.epoch(position) * samples, within = position - epoch;
  const std::uint64_t index =
      within < larger * (small + 1) ? within / (small + 1) : larger + (within - larger * (small + 1)) / small;
  const auto begin = [&](std::uint64_t i) { return epoch + i * small + std::min(i, larger); };
  return {begin(index), begin(index + 1)};
}

LengthBuckets::Window LengthBuckets::plan(const Order& order, const Bounds& bounds) const {
  const std::uint64_t size = bounds.end - bounds.begin;
  const std::uint64_t key = mix(order.noise(order.epoch(bounds.begin)) + kGoldenGamma * (bounds.begin + 1));
  std::vector<Clip> clips(size);
  for (std::uint64_t i = 0; i < size; ++i) {
    Clip& clip = clips[i];
    clip.cost = cost_(order.sample(bounds.begin + i));
    clip.offset = static_cast<std::uint32_t>(i);
    const double ticks = clip.cost.seconds > 0 ? std::min(clip.cost.seconds * kTicks, kMostTicks) : 0;
    const std::uint64_t change = mix(key + kGoldenGamma * (i + 1)) % (kChange + 1);
    clip.key = static_cast<std::uint64_t>(ticks) * (kUnit + change);
  }
  std::sort(clips.begin(), clips.end(), [](const Clip& a, const Clip& b) {
    return a.key != b.key ? a.key < b.key : a.offset < b.offset;
  });
  std::vector<std::uint32_t> firsts;  // first index in `clips` of each batch
  std::vector<Growing> grown;
  for (std::uint64_t i = 0; i < size; ++i) {
    if (grown.empty() || !grown.back().has_room(clips[i].cost, budget_)) {
      firsts.push_back(static_cast<std::uint32_t>(i));
      grown.emplace_back();
    }
    grown.back().add(clips[i].cost);
  }
  Window out{bounds, {}, {}, {}};
  out.draws.reserve(size);
  const Permutation shuffled(grown.size(), mix(key));
  for (std::uint64_t i = 0; i < grown.size(); ++i) {
    const auto batch = static_cast<std::size_t>(shuffled(i));
    const auto rows = static_cast<std::uint32_t>(grown[batch].rows);
    for (std::uint32_t j = 0; j < rows; ++j) out.draws.push_back(clips[firsts[batch] + j].offset);
    out.ends.push_back(static_cast<std::uint32_t>(out.draws.size()));
    out.batches.push_back(grown[batch]);
  }
  return out;
}

std::shared_ptr<const LengthBuckets::Window> LengthBuckets::window(const Order& order,
                                                                   std::uint64_t position) const {
  const Bounds here = bounds(order, position);
  std::unique_lock lock(kept_->mutex);
  auto& entries = kept_->entries;
  const auto at = std::find_if(entries.begin(), entries.end(), [&](const Kept::Entry& each) {
    return each.begin == here.begin && each.order == order;
  });
  if (at != entries.end()) {
    const std::shared_ptr<Kept::Planned> found = at->planned;
    std::rotate(entries.begin(), at, at + 1);  // moves the most recently used entry to the front
    kept_->done.wait(lock, [&] { return found->done; });
    if (found->error != nullptr) std::rethrow_exception(found->error);
    return found->window;
  }
  const auto mine = std::make_shared<Kept::Planned>();
  entries.push_front({order, here.begin, mine});
  if (entries.size() > kWindowsKept) entries.pop_back();
  lock.unlock();
  std::shared_ptr<const Window> window;
  std::exception_ptr error;
  try {
    window = std::make_shared<const Window>(plan(order, here));
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  *mine = {true, window, error};
  kept_->done.notify_all();
  if (error != nullptr) std::rethrow_exception(error);
  return window;
}

std::int64_t LengthBuckets::rows_at(const Order& order, std::uint64_t position) const {
  const auto here = window(order, position);
  return static_cast<std::int64_t>(here->bounds.begin + here->ends[here->batch_at(position)] - position);
}

std::vector<std::uint64_t> LengthBuckets::draws(const Order& order, std::uint64_t first,
                                                std::int64_t rows) const {
  std::vector<std::uint64_t> out;
  const std::uint64_t end = first + static_cast<std::uint64_t>(rows);
  for (std::uint64_t position = first; position < end;) {
    const auto here = window(order, position);
    const std::uint64_t begin = here->bounds.begin, until = std::min(end, here->bounds.end);
    for (; position < until; ++position) out.push_back(begin + here->draws[position - begin]);
  }
  return out;
}

Batches::BatchCount LengthBuckets::count_batches(const Order& order, std::uint64_t positions) const {
  const std::uint64_t end = order.start() + positions;
  std::vector<Bounds> whole;  // windows that end at or before `end`
  std::uint64_t position = order.start();
  for (; position < end; position = whole.back().end) {
    const Bounds next = bounds(order, position);
    if (next.end > end) break;
    whole.push_back(next);
  }
  std::vector<std::int64_t> counts(whole.size());
  parallel_for(whole.size(), planning_threads(), [&](std::uint64_t i) {
    counts[i] = static_cast<std::int64_t>(plan(order, whole[i]).ends.size());
  });
  BatchCount out{0, position};
  for (const std::int64_t each : counts) out.batches += each;
  for (; out.end < end; ++out.batches) out.end += static_cast<std::uint64_t>(rows_at(order, out.end));
  return out;
}

LengthBuckets::Survey LengthBuckets::survey(const Order& order) const {
  const std::uint64_t end = order.start() + static_cast<std::uint64_t>(order.samples());
  std::vector<Bounds> windows;
  for (std::uint64_t position = order.start(); position < end; position = windows.back().end)
    windows.push_back(bounds(order, position));
  // Adds the batches of `part`, which are after those of `to`.
  const auto add = [](Survey& to, const Survey& part) {
    to.least_rows = to.batches == 0 ? part.least_rows : std::min(to.least_rows, part.least_rows);
    to.most_rows = std::max(to.most_rows, part.most_rows);
    to.seconds += part.seconds;
    to.padded_seconds += part.padded_seconds;
    if (to.batches == 0 || part.largest_seconds > to.largest_seconds) {
      to.largest = part.largest;
      to.largest_rows = part.largest_rows;
      to.largest_seconds = part.largest_seconds;
    }
    to.batches += part.batches;
  };
  std::vector<Survey> parts(windows.size());
  parallel_for(windows.size(), planning_threads(), [&](std::uint64_t w) {
    const Window here = plan(order, windows[w]);
    for (std::size_t b = 0; b < here.ends.size(); ++b) {
      const Growing& batch = here.batches[b];
      const std::uint64_t position = windows[w].begin + (b == 0 ? 0 : here.ends[b - 1]);
      add(parts[w],
          {1, batch.rows, batch.rows, batch.seconds, batch.padded(), position, batch.rows, batch.padded()});
    }
  });
  Survey out;
  for (const Survey& part : parts) add(out, part);
  return out;
}

}  // namespace octavo_train
