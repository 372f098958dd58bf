// The bytes of TensorBoard's event files, written by hand: protocol buffers of three message types (Event,
// Summary, SessionLog), each framed as a TFRecord with masked CRC32C checksums. No I/O here.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octavo::train {

struct Scalar {
  std::string tag;
  float value = 0;
};

// CRC-32C (Castagnoli) of `bytes`; masked: as TFRecords store it, so that a checksum of data that holds
// checksums stays sound.
std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);

// Length, checksum of the length, data, checksum of the data.
std::string tfrecord(std::string_view data);

// Whole records. `wall_time` is in unix seconds.
std::string version_event(double wall_time);  // the first of every file
// TensorBoard drops what it has of this step and of later ones, from every earlier file of the folder.
std::string session_start_event(double wall_time, std::int64_t step);
std::string scalars_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars);
// A text in Markdown, which TensorBoard shows under Text.
std::string text_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view markdown);

}  // namespace octavo::train
