// See run_support.h.
// SPDX-License-Identifier: MIT
#include "tests/train/run_support.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTiny = R"(
model: {n_layer: 2, n_embd: 32, n_head: 2, mlp_internal_dim_multiplier: 8, dropout: 0.1}
data: {train: TEXT, block_size: 32, dataloader_num_workers: 1, max_eval_samples: 8}
training:
  optimizer: adamw_8bit
  learning_rate: 3.0e-3
  compute_dtype: float32
  per_device_train_batch_size: 2
  warmup_steps: 3
  max_steps: 12
  eval_steps: 6
  save_steps: 4
  logging_steps: 2
  sample_tokens: 8
  device: cpu
output_dir: OUT
)";

void put(std::string& text, const std::string& name, const std::string& value) {
  text.replace(text.find(name), name.size(), '"' + value + '"');
}

const TempFolder& folder_of_all() {
  static const TempFolder folder;
  return folder;
}

// Returns random sentences, so that there is something to learn.
std::string some_text(std::size_t bytes) {
  static constexpr const char* kWords[] = {"the cat", "a dog", "the old king", "her sister",
                                           "sees",    "finds", "likes",        "and then"};
  std::string out;
  for (std::uint32_t state = 1; out.size() < bytes;) {
    state = state * 1664525U + 1013904223U;
    out += kWords[state >> 29];
    out += (state >> 20) % 8 == 0 ? ".\n" : " ";
  }
  out.resize(bytes);
  return out;
}

}  // namespace

const std::string& text_file() {
  static const std::string path = [] {
    std::string made = folder_of_all().at("text.txt");
    write_bytes(made, some_text(60'000));
    return made;
  }();
  return path;
}

TinyRun::TinyRun(const std::string& folder, const std::string& name) : out(folder + '/' + name), yaml(kTiny) {
  put(yaml, "TEXT", text_file());
  put(yaml, "OUT", out);
}

Result<Outcome> TinyRun::train(const Words& words) {
  auto config = parse(yaml, "run.yaml", words);
  Status bad = config.status();
  if (bad.ok()) {
    Recorder recorder;
    recorder.each = each;
    auto outcome = octavo_train::train(*config, recorder);
    said += recorder.said;
    if (outcome.ok()) return outcome;
    bad = outcome.status();
  }
  said += bad.message() + '\n';
  return bad;
}

void TinyRun::finish(const Words& words) {
  const auto outcome = train(words);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->signal, 0);
}

void TinyRun::fail(const Words& words, const std::string& part) {
  const auto outcome = train(words);
  ASSERT_FALSE(outcome.ok());
  EXPECT_THAT(outcome.status().message(), testing::HasSubstr(part));
}

std::vector<Json> TinyRun::records(const std::string& kind) const {
  std::vector<Json> found;
  std::istringstream log(read_bytes(out + "/metrics.jsonl"));
  for (std::string line; std::getline(log, line);) {
    Json record = Json::parse(line);
    if (kind.empty() || record["kind"] == kind) found.push_back(std::move(record));
  }
  return found;
}

std::vector<std::int64_t> TinyRun::steps(const std::string& kind) const {
  std::vector<std::int64_t> found;
  for (const Json& record : records(kind)) found.push_back(record["step"]);
  return found;
}

std::size_t TinyRun::lines() const {
  return static_cast<std::size_t>(std::ranges::count(read_bytes(out + "/metrics.jsonl"), '\n'));
}

std::string TinyRun::checkpoint(std::int64_t step) const {
  return out + "/checkpoint-" + std::to_string(step);
}
bool TinyRun::has(std::int64_t step) const { return fs::exists(checkpoint(step)); }

std::pair<std::string, std::string> TinyRun::bits(std::int64_t step) const {
  EXPECT_TRUE(has(step)) << checkpoint(step);
  return {read_bytes(checkpoint(step) + "/model.safetensors"),
          read_bytes(checkpoint(step) + "/optimizer.safetensors")};
}

Json TinyRun::state(std::int64_t step) const {
  return Json::parse(read_bytes(checkpoint(step) + "/state.json"));
}

Json TinyRun::header(std::int64_t step, const std::string& file) const {
  const std::string bytes = read_bytes(checkpoint(step) + '/' + file);
  std::uint64_t size = 0;
  if (bytes.size() < sizeof size) return {};
  std::memcpy(&size, bytes.data(), sizeof size);
  return Json::parse(bytes.substr(sizeof size, size));
}

std::vector<Json> TinyRun::curves() const {
  std::vector<Json> found;
  for (const Json& record : records()) {
    if (record["kind"] != "train" && record["kind"] != "eval") continue;
    Json& kept = found.emplace_back();
    for (const char* key : {"kind", "step", "loss", "lr", "grad_norm", "tokens", "skipped"})
      if (record.contains(key)) kept[key] = record[key];
  }
  return found;
}

Child::Child(const std::function<int()>& work) : pid_(::fork()) {
  if (pid_ == 0) ::_exit(work());
}

Child::~Child() {
  if (!ended()) {
    send(SIGKILL);
    wait();
  }
}

bool Child::ended() {
  if (code_ >= 0) return true;
  int state = 0;
  if (::waitpid(pid_, &state, WNOHANG) == pid_)
    code_ = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return code_ >= 0;
}

bool Child::wait_until(const std::function<bool()>& ready) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(3);
  while (!ready()) {
    if (ended() || std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void Child::send(int signal) const { ::kill(pid_, signal); }

int Child::wait() {
  wait_until([this] { return ended(); });
  return code_;
}

int exit_code(TinyRun& run, const Words& words) {
  const auto outcome = run.train(words);
  if (outcome.ok()) return outcome->signal == 0 ? 0 : 128 + outcome->signal;
  write_bytes(run.out + ".error", outcome.status().message());
  return 1;
}

const TinyRun& whole_run() {
  static const TinyRun run = [] {
    TinyRun made(folder_of_all().path(), "whole");
    made.finish();
    return made;
  }();
  return run;
}

}  // namespace octavo_train
