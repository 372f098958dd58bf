// Descriptors are close-on-exec, so that a program started by another thread does not keep them open.
// SPDX-License-Identifier: MIT
#include "apps/octavo/recordings/espeak.h"

#include "train/io/files.h"
#include "train/io/little_endian.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

extern char** environ;  // NOLINT(readability-redundant-declaration): not every unistd.h has it

namespace octavo::recordings {
namespace {

using octavo_train::FileDescriptor;
using octavo_train::load_little;

constexpr const char* kProgram = "espeak-ng";
// The bytes of the WAV header that espeak-ng writes, which has no other chunks.
constexpr std::size_t kHeader = 44;
constexpr std::size_t kMostText = 10000;  // bytes; less than a socket accepts in one send

Status failed(const Reader& reader, const std::string& reason) {
  return Status::failed(std::string(kProgram) + " -v " + reader.voice + ": " + reason);
}

Status system_error(const Reader& reader, const char* call, int error) {
  return failed(reader, std::string(call) + ": " + std::strerror(error));
}

// Starts the program with the two descriptors as its stdin and stdout. Its error messages are discarded; only
// the exit code is used.
int start(const Reader& reader, int input, int output, pid_t& process) {
  const std::string pace = std::to_string(reader.words_per_minute), pitch = std::to_string(reader.pitch);
  std::vector<std::string> words = {kProgram, "-v", reader.voice, "-s", pace, "-p", pitch, "-b", "1"};
  words.insert(words.end(), {"-z", "--stdin", "--stdout"});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const int error = posix_spawnp(&process, kProgram, &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

std::string read_all(int from) {
  std::string out;
  std::array<char, 65536> block{};
  for (;;) {
    const ssize_t count = ::read(from, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return out;
    out.append(block.data(), static_cast<std::size_t>(count));
  }
}

// The lengths in the header are placeholders, because the program writes the header before it knows them.
Result<SpokenText> samples_of(std::string_view wav, const Reader& reader) {
  if (wav.size() < kHeader || !wav.starts_with("RIFF") || wav.substr(8, 4) != "WAVE")
    return failed(reader, "it wrote " + std::to_string(wav.size()) + " bytes that are not a WAV file");
  if (load_little<std::uint16_t>(wav, 22) != 1 || load_little<std::uint16_t>(wav, 34) != 16 ||
      wav.substr(36, 4) != "data")
    return failed(reader, "its WAV file is not mono with 16 bits per sample");
  SpokenText out;
  out.rate = static_cast<int>(load_little<std::uint32_t>(wav, 24));
  for (std::size_t at = kHeader; at + 2 <= wav.size(); at += 2)
    out.samples.push_back(static_cast<float>(static_cast<std::int16_t>(load_little<std::uint16_t>(wav, at))) /
                          32768.0F);
  return out;
}

}  // namespace

Result<SpokenText> speak(const std::string& text, const Reader& reader) {
  if (text.empty() || text.size() > kMostText)
    return Status::invalid("a text to speak: got " + std::to_string(text.size()) + " bytes, expected 1 to " +
                           std::to_string(kMostText));
  std::array<int, 2> in{}, out{};
  // A socket is used because writing to a pipe raises SIGPIPE if the program ends early.
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) != 0)
    return system_error(reader, "socketpair", errno);
  FileDescriptor input(in[0]), its_input(in[1]);
  if (pipe2(out.data(), O_CLOEXEC) != 0) return system_error(reader, "pipe2", errno);
  FileDescriptor output(out[0]), its_output(out[1]);
  pid_t process = 0;
  if (const int error = start(reader, its_input.get(), its_output.get(), process); error != 0) {
    return error == ENOENT ? failed(reader, "the program is not there; install the package espeak-ng")
                           : system_error(reader, "cannot be started", error);
  }
  its_input = {};
  its_output = {};
  const bool sent =
      send(input.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  input = {};
  const std::string wav = read_all(output.get());
  int ended = 0;
  while (waitpid(process, &ended, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0)
    return failed(reader, "it failed; `espeak-ng --voices` lists the voices that it has");
  if (!sent) return failed(reader, "it did not read its text");
  return samples_of(wav, reader);
}

}  // namespace octavo::recordings
