// Writes the log of a run: metrics.jsonl, with one JSON object per line, and a TensorBoard event file in the
// same folder.
//
//   auto log = octavo_train::RunLog::open("runs/first", 0);  // or the step of the checkpoint to resume from
//   if (!log.ok()) return log.status();
//   Status wrote = log->write({{"kind", "train"}, {"step", 10}, {"loss", 3.1}, {"lr", 1e-3}});
//
// A record is an object with "kind" and "step"; docs/guides/runs.md lists the kinds. Invariants: a line is
// written completely or not at all, as far as the file system allows it; steps never decrease within a file.
// Only one thread may use a RunLog at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/io/files.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace octavo_train {

class AppendFile {
 public:
  enum class Mode { create_new, create_or_append, truncate };

  static Result<AppendFile> open(const std::string& path, Mode mode);

  Status append(std::string_view bytes);
  Status sync();  // syncs the file to the disk

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  AppendFile(FileDescriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  FileDescriptor descriptor_;
  std::string path_;
  std::int64_t size_ = 0;
};

class RunLog {
 public:
  // Creates the folder if it does not exist. With `resume_step` 0 a new log begins, and an existing
  // metrics.jsonl is renamed to metrics.1.jsonl (the first free number). With `resume_step` above 0 the log
  // resumes after that step: lines of later steps, and lines that are not records (a torn last line), are
  // dropped atomically. In both cases a new event file begins, which makes TensorBoard drop the data that it
  // replaces.
  static Result<RunLog> open(const std::string& run_folder, std::int64_t resume_step);

  // Adds one line, with "time" (Unix seconds) as its first member, and passes it to the operating system
  // before it returns. Numbers that are not finite become null, and bytes that are not UTF-8 become U+FFFD.
  // Records of the kinds "train" and "eval" are also written for TensorBoard, there with their numbers
  // unchanged. The examples of an evaluation are written there as a text.
  Status write(const nlohmann::ordered_json& record);

  // Waits until all written data is on the disk.
  Status flush();

 private:
  RunLog(AppendFile metrics, AppendFile events) : metrics_(std::move(metrics)), events_(std::move(events)) {}

  AppendFile metrics_;
  AppendFile events_;
};

// TensorBoard's event files are encoded without a protobuf library: protocol buffers of three message types
// (Event, Summary, SessionLog), each framed as a TFRecord with masked CRC32C checksums. The functions below
// do no I/O.
struct Scalar {
  std::string tag;
  float value = 0;
};

// Returns the CRC-32C (Castagnoli) of `bytes`. The masked form is what TFRecords store, so that a checksum of
// data that contains checksums stays reliable.
std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);

// Returns a TFRecord: the length, the checksum of the length, the data, the checksum of the data.
std::string tfrecord(std::string_view data);

// These functions return complete records. `wall_time` is in Unix seconds.
std::string version_event(double wall_time);  // the first record of every file
// Makes TensorBoard drop the data of this and later steps that it has read from earlier files of the folder.
std::string session_start_event(double wall_time, std::int64_t step);
std::string scalars_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars);
// Returns a record with a Markdown text, which TensorBoard shows under Text.
std::string text_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view markdown);

}  // namespace octavo_train
