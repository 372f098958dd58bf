// Writes one checkpoint of a run: RUN/checkpoint-STEP/ appears with all of its files or not at all.
//
//   auto writer = octavo_train::CheckpointWriter::begin("runs/a", 500, expected_bytes);
//   if (!writer.ok()) return writer.status();
//   Status status = writer->add_tensors("model.safetensors", sources, {{"format", "pt"}});
//   if (status.ok()) status = writer->add_text("state.json", text);
//   if (status.ok()) status = writer->commit();
//
// The files are written in RUN/.checkpoint-STEP.partial, and each is fsynced. commit() adds checksums.txt,
// renames the folder and points RUN/latest at it. A crash at any moment leaves every earlier checkpoint
// intact for newest_checkpoint(); see checkpoint_folder.h for the names. REQUIRES: one writer per run folder
// at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/safetensors.h"
#include "train/io/checksums.h"
#include "train/io/files.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {

class CheckpointWriter {
 public:
  // Creates the folders after removing the leftovers of crashed writers. A leftover that cannot be removed is
  // a warning(). `expected_bytes` is the size of all files together; safetensors_size() computes a file's
  // part. If the free space is smaller, the error names the bytes that are free, needed and missing.
  static Result<CheckpointWriter> begin(const std::string& run_folder, std::int64_t step,
                                        std::uint64_t expected_bytes);

  // Adds a file. After an error the checkpoint is lost: destroy the writer, which removes what it has
  // written. If the disk fills up, the message names the bytes written and the bytes missing.
  Status add_tensors(const std::string& file_name, std::span<const TensorSource> sources,
                     const std::map<std::string, std::string>& metadata = {});
  Status add_text(const std::string& file_name, std::string_view text);

  // Completes the checkpoint; may be called once. It replaces a checkpoint of the same step, which a resumed
  // run may write again. After an error the checkpoint does not exist. Errors after the final rename are a
  // warning().
  Status commit();

  // Returns errors that did not harm the saved checkpoint: a leftover that could not be removed, or a failed
  // link `latest`. Empty if there were none.
  [[nodiscard]] const std::string& warning() const { return warning_; }
  [[nodiscard]] std::uint64_t bytes_written() const { return written_; }  // total of the files so far

 private:
  CheckpointWriter(std::string run_folder, std::int64_t step, std::uint64_t expected_bytes,
                   ScratchFolder partial)
      : run_folder_(std::move(run_folder)),
        step_(step),
        expected_bytes_(expected_bytes),
        partial_(std::move(partial)) {}
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
  Status failure_;  // the error of an earlier call, after which the checkpoint cannot be committed
};

}  // namespace octavo_train
