// No exception leaves a C function: a lack of memory is an error with a message, and changes nothing.
// SPDX-License-Identifier: MIT
#include "tests/support/failing_new.h"

#include <octavo/octavo.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using test::allocations_left;
using testing::AnyOf;
using testing::HasSubstr;

// The names of functions that the header declares.
std::set<std::string> declared() {
  std::ostringstream text;
  text << std::ifstream(std::filesystem::path(OCTAVO_TEST_SOURCES).parent_path() / "include/octavo/octavo.h")
              .rdbuf();
  const std::string header = text.str();
  const std::regex function(R"(OCTAVO_API [^;(]*?\b(octavo_\w+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator at(header.begin(), header.end(), function), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

// The bodies of all C functions by name: from a definition at the beginning of a line to the brace that ends
// it.
std::map<std::string, std::string> defined() {
  std::map<std::string, std::string> bodies;
  std::vector<std::filesystem::path> sources;
  for (const char* folder : {"src", "libs"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             std::filesystem::path(OCTAVO_TEST_SOURCES).parent_path() / folder)) {
      if (entry.path().extension() == ".cc") sources.push_back(entry.path());
    }
  }
  for (const std::filesystem::path& source : sources) {
    std::ifstream file(source);
    std::string line, name;
    const std::regex begin(R"(^[a-z].*?\b\(?(octavo_\w+)\)?\()");
    for (bool exported = false; std::getline(file, line);) {
      exported = exported || line == "extern \"C\" {";
      std::smatch match;
      if (exported && name.empty() && std::regex_search(line, match, begin)) name = match[1];
      if (name.empty()) continue;
      bodies[name] += line + '\n';
      if (line == "}" || (line.ends_with("}") && line.find('{') != std::string::npos && line[0] != ' '))
        name.clear();
    }
  }
  return bodies;
}

// Functions that call nothing that can throw.
const std::set<std::string> kNeverThrow = {
    "octavo_abi_version",
    "octavo_version_string",
    "octavo_last_error",
    "octavo_engine_destroy",
};

TEST(NoThrow, EveryFunctionIsGuarded) {
  const auto bodies = defined();
  const auto names = declared();
  ASSERT_GT(names.size(), 60U);
  for (const std::string& name : names) {
    const auto body = bodies.find(name);
    ASSERT_NE(body, bodies.end()) << name;
    if (kNeverThrow.contains(name)) continue;
    EXPECT_THAT(body->second,
                AnyOf(HasSubstr("return guarded("), HasSubstr("(void)guarded("), HasSubstr("value_or")))
        << name;
  }
}

// Calls with ever more memory, until the call succeeds. Returns how often it failed.
int failures(const std::function<bool()>& call) {
  for (int n = 0; n < 10000; ++n) {
    allocations_left = n;
    const bool ok = call();
    allocations_left = -1;
    if (ok) return n;
    EXPECT_STREQ(octavo_last_error(), "[octavo] out of host memory");
  }
  ADD_FAILURE() << "never succeeds";
  return -1;
}

struct Tensor {
  std::array<float, 64> param{}, first{}, second{}, grad{};
  std::int64_t step = 0;

  octavo_engine_tensor c(std::uint32_t residence) {
    octavo_engine_tensor out{};
    out.struct_size = sizeof out;
    out.numel = out.shape[0] = 64;
    out.ndim = 1;
    std::uint32_t fp32 = 0;
    EXPECT_EQ(octavo_parse("state", "fp32", &fp32), 0U);
    out.format = fp32;
    out.param = param.data();
    out.codes[0] = first.data();
    out.codes[1] = second.data();
    out.step = &step;
    out.residence = residence;
    return out;
  }
};

class Engine : public testing::Test {
 protected:
  void SetUp() override {
    std::uint32_t adamw = 0;
    ASSERT_EQ(octavo_parse("optimizer", "adamw", &adamw), 0U);
    ASSERT_EQ(octavo_engine_create(adamw, &engine_), 0U);
    octavo_step_args options{};
    options.struct_size = sizeof options;
    ASSERT_EQ(octavo_step_args_init(&options), 0U);
    ASSERT_EQ(octavo_engine_set_group(engine_, 0, 0, &options, 0, 0), 0U) << octavo_last_error();
  }
  void TearDown() override { octavo_engine_destroy(engine_); }

  bool set(std::uint32_t handle, const octavo_engine_tensor& tensor) {
    return octavo_engine_set(engine_, &handle, &tensor, 1) == 0;
  }

  octavo_engine* engine_ = nullptr;
};

// Neither the tensor nor its memory is registered, so another tensor may have the memory.
TEST_F(Engine, AFailedSetChangesNothing) {
  Tensor tensor;
  const octavo_engine_tensor host = tensor.c(1);
  ASSERT_GT(failures([&] {
              const bool ok = set(0, host);
              const std::int64_t left = allocations_left;
              allocations_left = -1;
              if (!ok) {
                const std::string why = octavo_last_error();
                EXPECT_TRUE(set(1, host)) << octavo_last_error();
                const std::uint32_t handle = 1;
                EXPECT_EQ(octavo_engine_remove(engine_, &handle, 1), 0U);
                EXPECT_EQ(why, "[octavo] out of host memory");
              }
              allocations_left = left;
              return ok;
            }),
            1);
}

TEST_F(Engine, SizesAndQuestionsSurviveALackOfMemory) {
  Tensor tensor;
  ASSERT_TRUE(set(0, tensor.c(0))) << octavo_last_error();
  const std::uint32_t handle = 0;
  const void* grad = tensor.grad.data();
  const std::uint8_t dtype = 0;
  octavo_engine_plan plan{};
  plan.struct_size = sizeof plan;
  ASSERT_EQ(octavo_engine_begin(engine_, &handle, &grad, &dtype, 1, 1, &plan), 0U) << octavo_last_error();
  EXPECT_GE(failures([&] { return octavo_engine_workspace_bytes(engine_, 0, 0) >= 0; }), 0);
  EXPECT_GE(failures([&] { return octavo_engine_staging_bytes(engine_, 0, 0) >= 0; }), 0);
  EXPECT_GE(failures([&] { return octavo_engine_host_bytes(engine_) >= 0; }), 0);
  allocations_left = 0;
  EXPECT_EQ(octavo_engine_holds(engine_, 0), 0U);
  EXPECT_EQ(octavo_engine_holds(engine_, 7), 0U);
  octavo_engine_forget_ready(engine_);
  allocations_left = -1;
}

TEST(NoThrow, QuestionsSurviveALackOfMemory) {
  EXPECT_GE(failures([] { return octavo_implementation() != nullptr; }), 0);
  EXPECT_GE(failures([] { return octavo_host_room() > 0; }), 0);
  EXPECT_GE(failures([] { return octavo_algorithm_count() > 0; }), 0);
  EXPECT_GE(failures([] { return octavo_algorithm_slots(0, 0) >= 0; }), 0);
  EXPECT_GE(failures([] { return octavo_format_count() > 0; }), 0);
}

}  // namespace
