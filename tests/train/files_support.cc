// See files_support.h.
// SPDX-License-Identifier: MIT
#include "train/files_support.h"
#include "train/base/status.h"

#include "support/random.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#ifdef __linux__
#include <sys/ptrace.h>
#endif

namespace octavo_train {

// Uses memory (/dev/shm) if possible, because no test here depends on a disk, and thousands of files are
// synced.
TempFolder::TempFolder() {
  for (const std::string& parent : {std::string("/dev/shm/"), testing::TempDir()}) {
    path_ = parent + "octavo_files_XXXXXX";
    if (::mkdtemp(path_.data()) != nullptr) return;
  }
  ADD_FAILURE() << "cannot make " << path_;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) {
    ADD_FAILURE() << "cannot write " << path;
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

std::string tensor_data(std::size_t bytes, std::uint64_t seed) {
  test::Random random(seed);
  std::string data(bytes, '\0');
  std::ranges::generate(data, [&] { return static_cast<char>(random.bits() >> 56); });
  return data;
}

TensorSource make_tensor(std::string name, std::string dtype, std::vector<std::int64_t> shape,
                         std::uint64_t seed) {
  std::size_t bytes = element_size(dtype);
  for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
  const auto data = std::make_shared<const std::string>(tensor_data(bytes, seed));
  return {std::move(name), std::move(dtype), std::move(shape),
          [data]() -> Result<Bytes> { return std::as_bytes(std::span(*data)); }};
}

std::string text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

Status save_checkpoint(const std::string& run_folder, std::int64_t step, std::uint64_t seed,
                       std::size_t bytes) {
  const std::vector<TensorSource> model = {
      make_tensor("weight", "F32", {2, static_cast<std::int64_t>(bytes / 8)}, seed)};
  const std::vector<TensorSource> states = {make_tensor("weight.codes", "U8", {17}, seed + 1)};
  auto writer = CheckpointWriter::begin(run_folder, step, 2 * bytes);
  if (!writer.ok()) return writer.status();
  RETURN_IF_ERROR(writer->add_tensors("model.safetensors", model));
  RETURN_IF_ERROR(writer->add_tensors("optimizer.safetensors", states));
  RETURN_IF_ERROR(writer->add_text("state.json", std::to_string(seed)));
  return writer->commit();
}

std::string checkpoint_seed(const std::string& path) {
  const Status status = verify_checkpoint(path);
  return status.ok() ? read_bytes(path + "/state.json") : status.message();
}

std::string in_child(const std::function<std::string()>& work) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = work();
    const bool sent = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t count = 0; (count = ::read(ends[0], piece.data(), piece.size())) > 0;)
    text.append(piece.data(), static_cast<std::size_t>(count));
  ::close(ends[0]);
  int state = 0;
  if (::waitpid(child, &state, 0) != child || !WIFEXITED(state) || WEXITSTATUS(state) != 0)
    text += " [child failed]";
  return text;
}

std::optional<bool> killed_at_call(int calls, const std::function<void()>& work) {
#ifdef __linux__
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(2);
    ::raise(SIGSTOP);
    work();
    ::_exit(0);
  }
  int state = 0;
  ::waitpid(child, &state, 0);
  if (!WIFSTOPPED(state)) return std::nullopt;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  // The process stops on entry to and on exit from each system call.
  for (int stops = 0; stops < 2 * calls - 1;) {
    if (::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) != 0) return std::nullopt;
    ::waitpid(child, &state, 0);
    if (!WIFSTOPPED(state)) {
      EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << "the child failed";
      return false;
    }
    if (WSTOPSIG(state) == (SIGTRAP | 0x80)) ++stops;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &state, 0);
  return true;
#else
  (void)calls, (void)work;
  return std::nullopt;
#endif
}

}  // namespace octavo_train
