// A program of functions that are newer than glibc 2.28 or have newer versions; test_wheel.py links and runs
// it.
// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <sys/stat.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <string>
#include <thread>

namespace {

const std::string made_before_main = std::to_string(std::random_device{}());

bool waits() {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  const auto begin = std::chrono::steady_clock::now();
  while (condition.wait_until(lock, begin + std::chrono::milliseconds(20)) != std::cv_status::timeout) {
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  return took >= std::chrono::milliseconds(20) && took < std::chrono::seconds(20);
}

bool reads_sizes(const char* program) {
  struct stat status = {};
  return stat(program, &status) == 0 &&
         std::filesystem::file_size(program) == static_cast<std::uintmax_t>(status.st_size) &&
         std::filesystem::exists(std::filesystem::symlink_status(program));
}

bool throws() {
  try {
    return std::stoul("17") == 17 && std::stol("none") != 0;
  } catch (const std::invalid_argument&) {
    return true;
  }
}

}  // namespace

int main(int, char** argv) {
  bool threads = false;
  std::thread([&] { threads = true; }).join();
  const bool fine = threads && !made_before_main.empty() && waits() && reads_sizes(argv[0]) && throws() &&
                    dlsym(RTLD_DEFAULT, "malloc") != nullptr;
  std::puts(fine ? "fine" : "not fine");
}
