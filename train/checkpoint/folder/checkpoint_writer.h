// Writes one checkpoint of a run: RUN/checkpoint-STEP/ appears with all of its files or not at all.
//
//   auto writer = octavo::train::CheckpointWriter::begin("runs/a", 500, expected_bytes);
//   if (!writer.ok()) return writer.status();
//   Status status = writer->add_tensors("model.safetensors", sources, {{"format", "pt"}});
//   if (status.ok()) status = writer->add_text("state.json", text);
//   if (status.ok()) status = writer->commit();
//
// The files grow in RUN/.checkpoint-STEP.partial, each fsynced; commit() adds checksums.txt, renames the
// folder and points RUN/latest at it. Whatever the moment of a crash, every checkpoint that was there before
// is found by newest_checkpoint(); see checkpoint_folder.h for the names. REQUIRES: one writer per run folder
// at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/safetensors.h"
#include "train/io/checksums.h"
#include "train/io/scratch_folder.h"

#include <octavo/status.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

class CheckpointWriter {
 public:
  // Makes the folders, after removing what crashed writers left; what stays is a warning(). Too little room
  // for `expected_bytes` (of all files together; safetensors_size() helps) is an error that says how much is
  // free, needed and missing.
  static Result<CheckpointWriter> begin(const std::string& run_folder, std::int64_t step,
                                        std::uint64_t expected_bytes);

  // After an error the checkpoint is lost: destroy the writer, which removes what it has written. A disk that
  // fills up gives a message with how much was written and how much is missing.
  Status add_tensors(const std::string& file_name, std::span<const TensorSource> sources,
                     const std::map<std::string, std::string>& metadata = {});
  Status add_text(const std::string& file_name, std::string_view text);

  // Replaces a checkpoint of the same step, which a resumed run may write again. Once. An error: the
  // checkpoint is not there; what fails after it has its name is a warning().
  Status commit();

  // What failed beside the checkpoint, which is saved all the same: a leftover that stays, `latest`; or
  // empty.
  [[nodiscard]] const std::string& warning() const { return warning_; }
  [[nodiscard]] std::uint64_t bytes_written() const { return written_; }  // of all files so far

 private:
  CheckpointWriter(std::string run_folder, std::int64_t step, std::uint64_t expected_bytes,
                   ScratchFolder partial);
  template <class Write>
  Status add_file(const std::string& file_name, std::uint64_t size, Write write);
  [[nodiscard]] Status check_open(const std::string& file_name) const;
  Status keep(Status status);
  void warn(const Status& status);

  std::string run_folder_;
  std::int64_t step_;
  std::uint64_t expected_bytes_;
  std::uint64_t written_ = 0;
  ScratchFolder partial_;  // removed with the writer, unless commit() has renamed it
  std::vector<FileChecksum> files_;
  std::string warning_;
  Status failure_;  // of an earlier call: why this can no longer become a checkpoint
};

}  // namespace octavo::train
