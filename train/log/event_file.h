// Encodes TensorBoard's event files without a protobuf library: protocol buffers of three message types
// (Event, Summary, SessionLog), each framed as a TFRecord with masked CRC32C checksums. There is no I/O here.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octavo_train {

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

// The functions below return complete records. `wall_time` is in Unix seconds.
std::string version_event(double wall_time);  // the first record of every file
// Makes TensorBoard drop the data of this and later steps that it has read from earlier files of the folder.
std::string session_start_event(double wall_time, std::int64_t step);
std::string scalars_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars);
// Returns a record with a Markdown text, which TensorBoard shows under Text.
std::string text_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view markdown);

}  // namespace octavo_train
