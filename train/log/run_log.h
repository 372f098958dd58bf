// The log of a run: metrics.jsonl, one JSON object per line, and beside it an event file for TensorBoard.
//
//   auto log = octavo::train::RunLog::open("runs/first", 0);  // or the step of the checkpoint to go on from
//   if (!log.ok()) return log.status();
//   Status wrote = log->write({{"kind", "train"}, {"step", 10}, {"loss", 3.1}, {"lr", 1e-3}});
//
// A record is an object with "kind" and "step"; docs/guides/report.md lists the kinds. Invariants: a line is
// written whole or not at all, as far as the file system lets us; steps never go back within a file.
// One thread at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/log/append_file.h"

#include <octavo/status.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

namespace octavo::train {

class RunLog {
 public:
  // Makes the folder where it is missing. With `resume_step` 0 the log begins anew, and a metrics.jsonl that
  // is there becomes metrics.1.jsonl (the first free number). Above 0 the log goes on after that step: lines
  // of later steps, and lines that are no record (a torn last one), are dropped, atomically. Either way a new
  // event file begins, which makes TensorBoard drop what it replaces.
  static Result<RunLog> open(const std::string& run_folder, std::int64_t resume_step);

  // Adds one line, with "time" (unix seconds) as its first member, and hands it to the operating system
  // before it returns. Numbers that are not finite become null, bytes that are not UTF-8 become U+FFFD.
  // Records of the kinds "train" and "eval" go to TensorBoard too, there with numbers as they are; the
  // examples of an evaluation as a text.
  Status write(const nlohmann::ordered_json& record);

  // Waits until all that was written is on the disk.
  Status flush();

 private:
  RunLog(AppendFile metrics, AppendFile events);

  AppendFile metrics_;
  AppendFile events_;
};

}  // namespace octavo::train
