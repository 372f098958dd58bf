// SPDX-License-Identifier: MIT
#include "train/log/run_log.h"

#include "train/base/metric_names.h"
#include "train/base/word_diff.h"
#include "train/io/files.h"
#include "train/io/protobuf_wire.h"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

int flags_of(AppendFile::Mode mode) {
  return mode == AppendFile::Mode::create_new ? O_EXCL : mode == AppendFile::Mode::truncate ? O_TRUNC : 0;
}

// Escapes Markdown as numeric character references, because a backslash does not work inside a table or
// before every character. Line breaks become blanks, because they would end the table.
std::string plain_markdown(std::string_view text) {
  constexpr std::string_view kMarkup = "\\`*_{}[]()<>#+-.!|~&";
  std::string out;
  for (const char c : text)
    if (kMarkup.find(c) != std::string_view::npos)
      out += "&#" + std::to_string(static_cast<int>(c)) + ';';
    else
      out += c == '\n' || c == '\r' ? ' ' : c;
  return out;
}

// Returns a text of an example. Bytes that are not UTF-8 become U+FFFD, as in metrics.jsonl, because
// TensorBoard would fail on them.
std::string text_of(const json& example, const char* name) {
  const auto at = example.find(name);
  if (at == example.end() || !at->is_string()) return {};
  return json::parse(at->dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

// Formats a record's member `examples` as a Markdown table for TensorBoard: the reference next to the
// transcript, with the words that differ in bold. Empty if the record has none. Texts are escaped, so nothing
// in them is markup.
std::string examples_markdown(const json& record) {
  const auto examples = record.find("examples");
  if (examples == record.end() || !examples->is_array() || examples->empty()) return {};
  std::string out = "| clip | reference | transcribed |\n|---|---|---|\n";
  for (const json& each : *examples) {
    if (!each.is_object()) continue;
    const std::string reference = text_of(each, "reference"), hypothesis = text_of(each, "hypothesis");
    const WordDiff pair =
        marked(align_words(reference, hypothesis), {"**", "**", "**", "**", plain_markdown});
    out += "| " + plain_markdown(text_of(each, "name")) + " | " + pair.reference + " | " + pair.hypothesis +
           " |\n";
  }
  return out;
}

constexpr std::uint32_t kCastagnoli = 0x82f63b78;  // the polynomial, bits reversed

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    table[i] = crc;
  }
  return table;
}

// The field numbers below are from tensorflow/core/util/event.proto, and from summary.proto, tensor.proto and
// tensor_shape.proto in framework/.
using Message = ProtobufWriter;

Message event(double wall_time, std::int64_t step) {
  Message message;
  message.real(1, wall_time).varint(2, static_cast<std::uint64_t>(step));
  return message;
}

constexpr std::string_view kMetrics = "metrics.jsonl";
constexpr std::string_view kEvents = "events.out.tfevents.";

// A member of a record that TensorBoard shows: the kind of the record, the JSON path of the member, and the
// tag.
struct TagRule {
  std::string_view kind;
  std::string_view path;
  std::string_view tag;
};
// Users of NeMo look for the tags train_loss, lr and val_wer.
constexpr std::array<TagRule, 14> kTagRules{{
    {"train", "/loss", "train/loss"},
    {"train", "/loss", "train_loss"},
    {"train", "/lr", "train/lr"},
    {"train", "/lr", "lr"},
    {"train", "/grad_norm", "train/grad_norm"},
    {"train", "/loss_scale", "train/loss_scale"},
    {"train", "/rows", "train/rows"},
    {"train", "/padding", "train/padding"},
    {"train", "/comm_bytes", "train/comm_bytes"},
    {"train", "/comm_seconds", "train/comm_seconds"},
    {"train", "/comm_waited", "train/comm_waited"},
    {"train", "/data_waited", "train/data_waited"},
    {"train", "/memory/device", "memory/device"},
    {"train", "/memory/host", "memory/host"},
}};
constexpr std::string_view kRate = "_per_second";  // suffix of the task's throughput

double unix_seconds() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return std::round(now.count() * 1000) / 1000;  // so that it prints in 14 digits
}

Status failure(const fs::path& path, const std::string& doing, const std::error_code& error) {
  return failed_error("{}: cannot {}: {}", path.string(), doing, error.message());
}

// Returns the step of a line that is a record, or -1.
std::int64_t step_of(const std::string& line) {
  const json record = json::parse(line, nullptr, false);
  if (!record.is_object()) return -1;
  const auto step = record.find("step");
  if (step == record.end() || !step->is_number_integer()) return -1;
  return step->get<std::int64_t>();
}

// Renames metrics.jsonl to the first metrics.N.jsonl that is free. REQUIRES: metrics.jsonl exists.
Status set_aside(const fs::path& metrics) {
  std::error_code error;
  for (int number = 1;; ++number) {
    const fs::path aside = metrics.parent_path() / ("metrics." + std::to_string(number) + ".jsonl");
    if (fs::exists(fs::symlink_status(aside, error))) continue;
    fs::rename(metrics, aside, error);
    return error ? failure(metrics, "rename it to " + aside.string(), error) : Status();
  }
}

// Drops all lines after `step`. The result is written to another file and renamed, so that a crash leaves the
// old file or the new file. REQUIRES: metrics.jsonl exists.
Status drop_after(const fs::path& metrics, std::int64_t step) {
  std::ifstream in(metrics, std::ios::binary);
  if (!in)
    return failed_error("{}: cannot read it; to resume, its lines up to step {} are needed", metrics.string(),
                        step);
  const fs::path beside = metrics.parent_path() / (".metrics.jsonl.partial");
  ASSIGN_OR_RETURN(AppendFile out, AppendFile::open(beside.string(), AppendFile::Mode::truncate));
  Status status;
  for (std::string line; status.ok() && std::getline(in, line);)
    if (const std::int64_t found = step_of(line); found >= 0 && found <= step)
      status = out.append(line + '\n');
  if (status.ok() && in.bad()) status = failed_error("{}: cannot read it to its end", metrics.string());
  if (status.ok()) status = out.sync();
  std::error_code error;
  if (status.ok()) {
    fs::rename(beside, metrics, error);
    if (error) status = failure(beside, "rename it to " + metrics.string(), error);
  }
  if (!status.ok()) fs::remove(beside, error);
  return status;
}

// Opens a new event file. TensorBoard reads the event files of a folder in the order of their names, so the
// new name must be the last, even if two runs begin within a second.
Result<AppendFile> new_event_file(const fs::path& folder, double now) {
  auto seconds = static_cast<std::int64_t>(now);
  ASSIGN_OR_RETURN(const auto names, list_folder(folder.string()));
  for (const std::string& name : names) {
    if (!name.starts_with(kEvents)) continue;
    const std::int64_t other = std::strtoll(name.c_str() + kEvents.size(), nullptr, 10);
    if (other >= seconds && other < seconds + 86400) seconds = other + 1;  // names further ahead are not ours
  }
  std::string digits = std::to_string(seconds);
  digits.insert(0, digits.size() < 10 ? 10 - digits.size() : 0, '0');
  return AppendFile::open((folder / (std::string(kEvents) + digits + ".octavo")).string(),
                          AppendFile::Mode::create_new);
}

// TensorBoard's scalars are floats. A conversion out of range is undefined in C++, so infinity is written.
float to_float(double value) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (std::abs(value) > kLargest)
    return std::copysign(std::numeric_limits<float>::infinity(), value < 0 ? -1.F : 1.F);
  return static_cast<float>(value);
}

// Returns true if TensorBoard shows a member that the task has named: its throughput, and the metrics of an
// evaluation, which are listed in the member "better". A record without this list is from a run whose only
// metric was the loss.
bool is_tasks_own(const json& record, const std::string& kind, const std::string& name) {
  if (kind == "train") return name.ends_with(kRate);
  if (kind != "eval") return false;
  const auto metrics = record.find("better");
  return metrics == record.end() ? name == "loss" : metrics->contains(name);
}

std::vector<Scalar> scalars_of(const json& record, const std::string& kind) {
  std::vector<Scalar> out;
  const auto add = [&](std::string tag, const json& value) {
    if (value.is_number()) out.push_back({std::move(tag), to_float(value.get<double>())});
  };
  for (const TagRule& rule : kTagRules) {
    if (rule.kind != kind) continue;
    const json::json_pointer path{std::string(rule.path)};
    if (record.contains(path)) add(std::string(rule.tag), record.at(path));
  }
  for (const auto& [name, value] : record.items()) {
    if (!is_tasks_own(record, kind, name)) continue;
    add(kind + '/' + name, value);
    if (kind == "eval") add(known_metric_name(name), value);
  }
  return out;
}

}  // namespace

Result<AppendFile> AppendFile::open(const std::string& path, Mode mode) {
  AppendFile file(
      FileDescriptor(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | flags_of(mode), 0666)),
      path);
  if (file.descriptor_.get() < 0) return system_error(path, "open it for writing", errno);
  struct stat found {};
  if (::fstat(file.descriptor_.get(), &found) != 0) return system_error(path, "read its size", errno);
  file.size_ = found.st_size;
  return file;
}

Status AppendFile::append(std::string_view bytes) {
  std::string_view left = bytes;
  while (!left.empty()) {
    const ssize_t written = ::write(descriptor_.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      // A partial record would damage the next record, so it is removed. If that fails too, readers skip it.
      if (left.size() < bytes.size() && ::ftruncate(descriptor_.get(), size_) != 0)
        size_ += bytes.size() - left.size();
      return system_error(path_, "append " + std::to_string(bytes.size()) + " bytes", error);
    }
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  size_ += static_cast<std::int64_t>(bytes.size());
  return {};
}

Status AppendFile::sync() {
  const int error = sync_descriptor(descriptor_);
  // A pipe or a device cannot be synced.
  if (error != 0 && error != EINVAL && error != EROFS)
    return system_error(path_, "write it to the disk", error);
  return {};
}

Result<RunLog> RunLog::open(const std::string& run_folder, std::int64_t resume_step) {
  if (resume_step < 0) {
    return invalid_error("[log] resume_step: got {}, expected 0 for a new run or the step of a checkpoint",
                         resume_step);
  }
  const fs::path folder(run_folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return failure(folder, "make the run's folder", error);
  const fs::path metrics = folder / kMetrics;
  if (fs::exists(metrics, error))
    RETURN_IF_ERROR(resume_step == 0 ? set_aside(metrics) : drop_after(metrics, resume_step));
  ASSIGN_OR_RETURN(AppendFile lines, AppendFile::open(metrics.string(), AppendFile::Mode::create_or_append));
  const double now = unix_seconds();
  ASSIGN_OR_RETURN(AppendFile events, new_event_file(folder, now));
  // A session's START also drops its own step, and resume_step is the last step to keep.
  const std::int64_t first = resume_step == 0 ? 0 : resume_step + 1;
  RETURN_IF_ERROR(events.append(version_event(now) + session_start_event(now, first)));
  return RunLog(std::move(lines), std::move(events));
}

Status RunLog::write(const json& record) {
  const auto kind = record.is_object() ? record.find("kind") : record.end();
  const auto step = record.is_object() ? record.find("step") : record.end();
  if (kind == record.end() || !kind->is_string() || step == record.end() || !step->is_number_integer() ||
      step->get<std::int64_t>() < 0) {
    return invalid_error(
        "[log] record: got {}, expected an object with \"kind\" (a string) and \"step\" (an integer from 0)",
        record.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 200));
  }
  const double now = unix_seconds();
  json line = {{"time", now}};
  line.update(record);
  Status status = metrics_.append(line.dump(-1, ' ', false, json::error_handler_t::replace) + '\n');
  if (!status.ok()) return status;
  const std::vector<Scalar> scalars = scalars_of(record, kind->get<std::string>());
  const auto number = step->get<std::int64_t>();
  if (!scalars.empty()) status = events_.append(scalars_event(now, number, scalars));
  const std::string examples = examples_markdown(record);
  if (!examples.empty() && status.ok())
    status = events_.append(text_event(now, number, "eval/examples", examples));
  return status;
}

Status RunLog::flush() {
  const Status status = metrics_.sync();
  return status.ok() ? events_.sync() : status;
}

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = 0xffffffff;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return crc ^ 0xffffffff;
}

std::uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8; }

std::string tfrecord(std::string_view data) {
  std::string out;
  append_little(out, static_cast<std::uint64_t>(data.size()));
  append_little(out, masked_crc32c(out));
  out += data;
  append_little(out, masked_crc32c(data));
  return out;
}

std::string version_event(double wall_time) {
  Message message;
  message.real(1, wall_time).bytes(3, "brain.Event:2");
  return tfrecord(message.text());
}

std::string session_start_event(double wall_time, std::int64_t step) {
  Message session;
  session.varint(1, 1);  // status START
  return tfrecord(event(wall_time, step).bytes(7, session.text()).text());
}

std::string scalars_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  Message summary;
  for (const Scalar& scalar : scalars) {
    Message value;
    value.bytes(1, scalar.tag).real(2, scalar.value);
    summary.bytes(1, value.text());
  }
  return tfrecord(event(wall_time, step).bytes(5, summary.text()).text());
}

// The value is a tensor of one string, for the plugin `text`.
std::string text_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view markdown) {
  constexpr std::uint64_t kString = 7;  // DT_STRING
  const Message size = Message().varint(1, 1);
  const Message shape = Message().bytes(2, size.text());
  const Message tensor = Message().varint(1, kString).bytes(2, shape.text()).bytes(8, markdown);
  const Message plugin = Message().bytes(1, "text");
  const Message metadata = Message().bytes(1, plugin.text());
  const Message value = Message().bytes(1, tag).bytes(8, tensor.text()).bytes(9, metadata.text());
  const Message summary = Message().bytes(1, value.text());
  return tfrecord(event(wall_time, step).bytes(5, summary.text()).text());
}

}  // namespace octavo_train
