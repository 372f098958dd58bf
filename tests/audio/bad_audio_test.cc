// Tests recordings that are missing, truncated, empty, or have false headers: each is an error that names the
// file, the value and the reason.
// SPDX-License-Identifier: MIT
#include "tests/audio/recordings.h"
#include "tests/train/files_support.h"
#include "train/audio/audio.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <limits>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BadAudio : public testing::Test {
 protected:
  // Writes a file with these bytes.
  std::string file(const std::string& bytes, const std::string& name = "a.wav") {
    const std::string path = folder_.at(name);
    write_bytes(path, bytes);
    return path;
  }
  // Writes a recording of three seconds.
  std::string recording(const std::string& name) {
    const std::string path = folder_.at(name);
    EXPECT_TRUE(write_audio(path, sweep(100, 3000, 3, 16000), 16000).ok());
    return path;
  }
  static std::string read_error(const AudioRequest& request) {
    const auto clip = read_audio(request);
    return clip.ok() ? "no error" : clip.status().message();
  }
  static std::string probe_error(const std::string& path) {
    const auto info = probe_audio(path);
    return info.ok() ? "no error" : info.status().message();
  }
  // Expects that probing and reading fail with this message.
  static void expect_refused(const std::string& path, const testing::Matcher<const std::string&>& text) {
    EXPECT_THAT(probe_error(path), AllOf(testing::StartsWith(path + ": "), text));
    EXPECT_THAT(read_error({.path = path}), AllOf(testing::StartsWith(path + ": "), text));
  }

  TempFolder folder_;
};

const std::string kSecond = wav_data(std::vector<std::int16_t>(16000, 1000));

TEST_F(BadAudio, WhatIsNoFile) {
  expect_refused(folder_.at("none.wav"), HasSubstr("No such file"));
  expect_refused(folder_.path(), HasSubstr("is a folder"));
  const std::string pipe = folder_.at("pipe.wav");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(pipe, HasSubstr("is a pipe"));
}

TEST_F(BadAudio, WhatIsNoRecording) {
  expect_refused(file(""), HasSubstr("is empty (0 bytes)"));
  expect_refused(file("<html>404</html>"), HasSubstr("it is text, beginning with '<html>404</h"));
  expect_refused(file("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git lfs pull"));
  expect_refused(file(std::string("\0\0\0\x20"
                                  "ftypM4A \0\0\0\0",
                                  16)),
                 HasSubstr("MP4 or M4A"));
  expect_refused(file("\x1A\x45\xDF\xA3 and so on, quite long"), HasSubstr("WebM"));
  expect_refused(file(std::string("\x01\x02\xFE\0\0\0", 6)), HasSubstr("begins with the bytes 01 02 fe 00"));
  expect_refused(file("x"), HasSubstr("unsupported audio format (expected WAV, FLAC, OGG or MP3)"));
  expect_refused(file("RIFF....AVI LIST"), HasSubstr("a.wav"));
  expect_refused(file("fLaC"), HasSubstr("cannot open it"));
  expect_refused(file("OggS"), HasSubstr("a.wav"));
}

TEST_F(BadAudio, WavFilesWithoutSamples) {
  expect_refused(file(wav_file({}, "")), HasSubstr("has no samples"));
  expect_refused(file(wav_file({}, kSecond).substr(0, 36)), HasSubstr("no data chunk"));
  expect_refused(file(wav_file({}, kSecond).substr(0, 12)), HasSubstr("no data chunk"));
}

TEST_F(BadAudio, WavFilesThatAreCutShort) {
  expect_refused(file(wav_file({}, kSecond).substr(0, 20000)),
                 HasSubstr("is cut short: its header promises 32044 bytes, the file has 20000"));
  expect_refused(file(wav_file({}, kSecond).substr(0, 32043)), HasSubstr("cut short"));
}

// Each of these formats has its length in the header, and the file is shorter.
TEST_F(BadAudio, RarerFormatsThatAreCutShort) {
  const auto big = [](std::uint32_t value) {
    const std::string text = little(value, 4);
    return std::string(text.rbegin(), text.rend());
  };
  const std::string au = ".snd" + big(24) + big(32000) + big(3) + big(16000) + big(1) + kSecond;
  const auto clip = read_audio({.path = file(au, "a.au")});
  ASSERT_TRUE(clip.ok()) << clip.status().message();
  EXPECT_EQ(clip->samples.size(), 16000u);
  EXPECT_EQ(clip->source.format, "AU");
  expect_refused(file(au.substr(0, 20000), "a.au"), HasSubstr("promises 32024 bytes, the file has 20000"));
  const std::string rest(1000, 'x');
  expect_refused(file("FORM" + big(5000) + "AIFF" + rest), HasSubstr("promises 5008 bytes"));
  expect_refused(file("RIFX" + big(5000) + "WAVE" + rest), HasSubstr("promises 5008 bytes"));
  expect_refused(file("RF64" + little(0xFFFFFFFF, 4) + "WAVEds64" + little(28, 4) + little(5000, 8) + rest),
                 HasSubstr("promises 5008 bytes"));
  expect_refused(file("riff" + std::string(12, 'x') + little(5000, 8) + rest),
                 HasSubstr("promises 5000 bytes"));
}

// A program that writes into a pipe does not know the length, so it writes a large one, or all ones.
TEST_F(BadAudio, WavFilesOfAPipeAreRead) {
  for (const std::int64_t told : {0xFFFFFFFFLL, 0x7FFFF000LL, 0x80000000LL}) {
    const std::string path = file(wav_file({.data_bytes = told}, kSecond));
    const auto clip = read_audio({.path = path});
    ASSERT_TRUE(clip.ok()) << clip.status().message();
    EXPECT_EQ(clip->samples.size(), 16000u);
  }
}

TEST_F(BadAudio, RatesThatLie) {
  expect_refused(file(wav_file({.rate = 16000, .bytes_per_second = 88200}, kSecond)),
                 HasSubstr("says 16000 samples a second, and 88200 bytes a second, which are 44100 samples"));
  expect_refused(file(wav_file({.rate = 7}, kSecond)),
                 HasSubstr("says 7 samples a second, expected 1000 to"));
  expect_refused(file(wav_file({.rate = 2000000000}, kSecond)), HasSubstr("2000000000 samples a second"));
  expect_refused(file(wav_file({.rate = 0}, kSecond)), HasSubstr("a.wav"));
  // The header's rate is higher than the true one, so the seconds that a manifest requests do not exist.
  EXPECT_THAT(read_error({.path = file(wav_file({.rate = 44100}, kSecond)), .seconds = 1.0}),
              HasSubstr("1.000 s from 0.000 s on were asked for, it has 0.363 s at 44100 Hz"));
}

TEST_F(BadAudio, DurationsThatLie) {
  const std::string path = file(wav_file({}, kSecond));
  EXPECT_THAT(read_error({.path = path, .offset = 0.5, .seconds = 0.75}),
              HasSubstr("0.750 s from 0.500 s on were asked for, it has 1.000 s at 16000 Hz"));
  EXPECT_THAT(read_error({.path = path, .offset = 1}), HasSubstr("offset 1.000 s is after its end"));
  EXPECT_THAT(read_error({.path = path, .offset = 1e8, .seconds = 1.0}), HasSubstr("is after its end"));
}

TEST_F(BadAudio, CompressedFilesThatAreCutShort) {
  for (const char* name : {"a.flac", "a.ogg", "a.mp3"}) {
    const std::string path = recording(name);
    const std::string bytes = read_bytes(path);
    for (const double part : {0.3, 0.5, 0.9}) {
      write_bytes(path, bytes.substr(0, static_cast<std::size_t>(static_cast<double>(bytes.size()) * part)));
      EXPECT_THAT(read_error({.path = path}), AllOf(HasSubstr(path), testing::Not(HasSubstr("no error"))))
          << part;
    }
  }
}

// The samples before the damage can be read.
TEST_F(BadAudio, TheStartOfACutFlacFileIsRead) {
  const std::string path = recording("a.flac");
  const std::string bytes = read_bytes(path);
  write_bytes(path, bytes.substr(0, bytes.size() / 2));
  const auto clip = read_audio({.path = path, .seconds = 0.5});
  ASSERT_TRUE(clip.ok()) << clip.status().message();
  EXPECT_EQ(clip->samples.size(), 8000u);
}

TEST_F(BadAudio, AFlacFileOfUnknownLengthIsRead) {
  const std::string path = recording("a.flac");
  std::string bytes = read_bytes(path);
  bytes[21] = static_cast<char>(bytes[21] & 0xF0);  // the 36 bits of STREAMINFO's number of samples
  for (std::size_t i = 22; i < 26; ++i) bytes[i] = 0;
  write_bytes(path, bytes);
  const auto clip = read_audio({.path = path, .offset = 1, .seconds = 2.0});
  ASSERT_TRUE(clip.ok()) << clip.status().message();
  EXPECT_EQ(clip->samples.size(), 32000u);
  EXPECT_EQ(clip->source.frames, 48000);
}

TEST_F(BadAudio, SamplesThatAreNoNumbers) {
  std::string data(4 * 1000, '\0');
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1e30F}) {
    std::string bytes(4, '\0');
    std::memcpy(bytes.data(), &bad, 4);
    data.replace(4 * 500, 4, bytes);
    EXPECT_THAT(read_error({.path = file(wav_file({.floats = true}, data))}),
                HasSubstr("has samples that are not numbers"));
  }
}

// Such files are rejected because the decoder would stop at the end of the first recording.
TEST_F(BadAudio, SeveralRecordingsInOneFileAreRefused) {
  for (const char* name : {"a.mp3", "a.ogg"}) {
    const std::string path = folder_.at(name);
    ASSERT_TRUE(write_audio(path, tone(440, 0.3, 16000), 16000).ok());
    const std::string first = read_bytes(path), second = read_bytes(recording(name));
    EXPECT_EQ(probe_error(path), "no error");
    // The last case has the same recording twice, so that both parts of the OGG file have the same serial
    // number.
    for (const std::string& joined : {first + second, first + second + first, second + second}) {
      write_bytes(path, joined);
      expect_refused(path,
                     AllOf(HasSubstr("contains several recordings in one file ("), HasSubstr("ffmpeg")));
    }
  }
  // A tag at the end is not a recording.
  const std::string path = recording("a.mp3");
  write_bytes(path, read_bytes(path) + "TAG" + std::string(125, ' ') + std::string(20'000, 'x'));
  EXPECT_EQ(probe_error(path), "no error");
}

TEST_F(BadAudio, AFlacFileCannotHaveMoreSamplesThanItsBytesHold) {
  const std::string path = recording("a.flac");
  std::string bytes = read_bytes(path);
  bytes[21] = static_cast<char>(bytes[21] | 0x0F);  // the 36 bits of STREAMINFO's number of samples
  for (std::size_t i = 22; i < 26; ++i) bytes[i] = '\xFF';
  write_bytes(path, bytes);
  expect_refused(path, HasSubstr("its header promises 68719476735 samples, but its "));
}

TEST_F(BadAudio, RequestsThatMakeNoSense) {
  const std::string path = file(wav_file({.channels = 2}, kSecond));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(read_error({.path = path, .channel = 2}),
              HasSubstr("channel 2 was asked for, it has 2 (from 0)"));
  EXPECT_THAT(read_error({.path = path, .channel = -1}), HasSubstr("channel -1 was asked for"));
  EXPECT_THAT(read_error({.path = path, .offset = -1}), HasSubstr("offset is -1.000000, expected 0 or more"));
  EXPECT_THAT(read_error({.path = path, .offset = nan}), HasSubstr("offset is nan"));
  EXPECT_THAT(read_error({.path = path, .seconds = 0.0}),
              HasSubstr("duration is 0.000000, expected more than 0"));
  EXPECT_THAT(read_error({.path = path, .seconds = nan}), HasSubstr("duration is nan"));
  EXPECT_THAT(read_error({.path = path, .rate = 0}),
              HasSubstr("sample rate is 0.000000, expected 1000 to 768000"));
  EXPECT_THAT(read_error({.path = path, .speed = 0}), HasSubstr("speed is 0.000000, expected 0.1 to 10"));
}

TEST_F(BadAudio, WhatCannotBeWritten) {
  const std::vector<float> samples(1000);
  EXPECT_THAT(write_audio(folder_.at("a.xyz"), samples, 16000).message(),
              HasSubstr(".wav, .flac, .ogg or .mp3"));
  EXPECT_THAT(write_audio(folder_.at("no/a.wav"), samples, 16000).message(), HasSubstr("No such file"));
  EXPECT_THAT(write_audio(folder_.at("a.wav"), samples, 0).message(), HasSubstr("at 0 Hz"));
  const std::vector<float> bad = {0, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THAT(write_audio(folder_.at("a.flac"), bad, 16000).message(), HasSubstr("a sample is not a number"));
  EXPECT_TRUE(names_in(folder_.path()).empty());
}

// When the disk is full, no partial file remains and an existing file is not changed.
TEST_F(BadAudio, AFullDiskLeavesNothing) {
  for (const char* name : {"a.wav", "a.flac", "a.ogg", "a.mp3"}) {
    const std::string path = folder_.at(name);
    write_bytes(path, "old");
    const std::string message = in_child([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{10000, 10000};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      return write_audio(path, sweep(100, 7000, 20, 16000), 16000).message();
    });
    EXPECT_THAT(message, HasSubstr(path + ": cannot write"));
    EXPECT_TRUE(read_bytes(path) == "old");
    EXPECT_EQ(names_in(folder_.path()), (std::vector<std::string>{name}));
    write_bytes(path, "");
    std::remove(path.c_str());
  }
}

}  // namespace
}  // namespace octavo_train
