// Fuzzes recordings with mutations; see tests/train/fuzz.h. Recordings of every format are probed, read
// completely and in part, and streamed.
//   OCTAVO_FUZZ_INPUTS=1000000 build/tests/audio_test --gtest_filter='AudioFuzz.*'
// SPDX-License-Identifier: MIT
#include "tests/audio/recordings.h"
#include "tests/train/files_support.h"
#include "tests/train/fuzz.h"
#include "train/audio/audio.h"

#include <gtest/gtest.h>

#include <cmath>

#if defined(__SANITIZE_ADDRESS__)
// libsndfile 1.2 leaks the memory of an OGG file that it cannot open.
extern "C" const char* __lsan_default_suppressions();   // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "leak:vorbis_info_init\n";
}
#endif

namespace octavo_train {
namespace {

void expect_sound(std::span<const float> samples) {
  for (const float x : samples) ASSERT_TRUE(std::isfinite(x));
}

// Returns whether the file can be read to its end.
bool read_all(const std::string& path) {
  const auto info = probe_audio(path);
  if (!info.ok()) check(info.status());
  if (info.ok()) {
    EXPECT_GT(info->frames, 0);
    EXPECT_GE(info->rate, kLowestRate);
    EXPECT_LE(info->rate, kHighestRate);
    EXPECT_GE(info->channels, 1);
    EXPECT_FALSE(info->format.empty());
  }
  const auto clip = read_audio({.path = path});
  EXPECT_TRUE(info.ok() || !clip.ok());
  if (!clip.ok()) check(clip.status());
  if (clip.ok()) expect_sound(clip->samples);
  const auto part = read_audio({.path = path, .offset = 0.02, .seconds = 0.03, .rate = 8000, .speed = 1.1});
  if (!part.ok()) check(part.status());
  if (part.ok()) {
    EXPECT_LE(part->samples.size(), 220u);
    expect_sound(part->samples);
  }
  return clip.ok();
}

void fuzz_recordings(std::span<const std::string> seeds, std::span<const std::string> pieces,
                     const std::function<std::string(std::string)>& mend = {}) {
  const TempFolder folder;
  const std::string path = folder.at("a");
  fuzz(
      seeds, pieces,
      [&](std::string_view bytes) {
        write_bytes(path, mend ? mend(std::string(bytes)) : bytes);
        return read_all(path);
      },
      5);
}

// Returns recordings written with this extension, at two rates.
std::vector<std::string> written(const std::string& extension) {
  const TempFolder folder;
  std::vector<std::string> seeds;
  for (const int rate : {8000, 44100}) {
    const std::string path = folder.at("a") + extension;
    EXPECT_TRUE(write_audio(path, sweep(100, 3000, 0.1, rate), rate).ok());
    seeds.push_back(read_bytes(path));
  }
  return seeds;
}

TEST(AudioFuzz, Wav) {
  std::vector<std::string> seeds = {wav_file({}, std::string(400, 'x')),
                                    wav_file({.channels = 2, .floats = true}, std::string(400, '\1')),
                                    wav_file({.data_bytes = 0xFFFFFFFF}, std::string(100, 'x'))};
  const std::vector<std::string> pieces = {"RIFF",
                                           "WAVE",
                                           "data",
                                           "fmt ",
                                           "fact",
                                           "LIST" + little(8, 4) + "INFOICMT",
                                           "PEAK" + little(16, 4),
                                           "cue " + little(4, 4) + little(0xFFFF, 4),
                                           "smpl",
                                           "bext",
                                           "RF64",
                                           "RIFX",
                                           little(0xFFFE, 2),
                                           little(0x11, 2),
                                           little(0x31, 2),
                                           little(6, 2)};
  fuzz_recordings(seeds, pieces);
}

TEST(AudioFuzz, Flac) {
  const std::vector<std::string> pieces = {"fLaC", std::string("\x84\0\0\4", 4), "\xFF\xF8",
                                           std::string("\0\0\0\x22", 4), std::string("\3\0\0\x12", 4)};
  fuzz_recordings(written(".flac"), pieces);
}

// Fixes the checksum of each page. The decoder skips pages with wrong checksums, so few mutations would reach
// it otherwise.
std::string with_sums(std::string file) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(file[at]); };
  for (std::size_t page = file.find("OggS"); page != std::string::npos; page = file.find("OggS", page + 4)) {
    if (page + 27 > file.size()) break;
    std::size_t end = page + 27 + byte(page + 26);
    for (std::size_t i = page + 27; i < page + 27 + byte(page + 26) && i < file.size(); ++i) end += byte(i);
    if (end > file.size()) continue;
    file.replace(page + 22, 4, std::string(4, '\0'));
    std::uint32_t sum = 0;
    for (std::size_t i = page; i < end; ++i) {
      sum ^= static_cast<std::uint32_t>(byte(i)) << 24;
      for (int bit = 0; bit < 8; ++bit) sum = sum << 1 ^ ((sum & 0x80000000U) != 0 ? 0x04C11DB7U : 0);
    }
    file.replace(page + 22, 4, little(sum, 4));
  }
  return file;
}

TEST(AudioFuzz, Ogg) {
  const std::vector<std::string> pieces = {"OggS", std::string("\1vorbis"), std::string("\3vorbis"),
                                           "OpusHead", std::string(8, '\xFF')};
  fuzz_recordings(written(".ogg"), pieces, with_sums);
}

TEST(AudioFuzz, Mp3) {
  const std::vector<std::string> pieces = {
      "ID3", std::string("ID3\4\0\0\0\0\0\x0A", 10), "Xing", "Info", "\xFF\xFB", "\xFF\xF3\x88\xC4", "LAME",
      "TAG"};
  fuzz_recordings(written(".mp3"), pieces);
}

}  // namespace
}  // namespace octavo_train
