// Tests the page of a prediction (plan_page) as text. tests/apps/test_plan_page.py moves its controls in a
// browser.
// SPDX-License-Identifier: MIT
#include "train/report/plan_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::Not;

Json small_plan() {
  return Json::parse(R"({
    "title": "run.yaml on NVIDIA H200 SXM", "config": "run.yaml", "overrides": ["training.seed=7"],
    "unit": "tokens",
    "memory_rows": [["weights", 202000000], ["gradients", 101000000], ["communication", 0],
                    ["CUDA context", 660602880]],
    "total": 963602880, "allocated": 290000000, "reserved": 303000000,
    "step_seconds": 0.38, "units_per_second": 43100, "bound": "memory bandwidth",
    "lines": ["memory of NVIDIA H200 SXM:", "  weights   202 MB"],
    "kernels": [["aten::bmm", 0.152], ["aten::mul", 0.0761]],
    "gpus": [{"key": "h200", "name": "NVIDIA H200 SXM", "memory": 150109880320, "context": 660602880,
              "bandwidth": 4.8e12, "bf16": 989e12}],
    "now": {"rows": 32, "length": 512, "checkpointing": true, "state": "8bit", "gpu": "h200", "num_gpus": 1,
            "zero": "none"},
    "lengths_known": true,
    "states": [{"name": "8bit", "states": 205000000, "master": 100900000}],
    "points": [{"rows": 16, "length": 1512, "checkpointing": true, "weights": 202000000,
                "gradients": 101000000, "activations": 3330000000, "workspace": 34000000, "rounding": 17000,
                "fragmentation": 55000000, "step_seconds": 1.254, "units": 8192}]})");
}

// Returns the page between its style and its data.
std::string body_of(const Json& plan) {
  const std::string page = plan_page(plan);
  const std::size_t begin = page.find("<body>");
  return page.substr(begin, page.find("<script") - begin);
}

TEST(PlanPage, HasEveryNumberWithoutScript) {
  const std::string body = body_of(small_plan());
  for (const char* part : {"run.yaml on NVIDIA H200 SXM",
                           "<code>training.seed=7</code>",
                           ">fits<",
                           "964 MB",
                           "149 GB of 150 GB",
                           "380 ms",
                           "bound by memory bandwidth",
                           "43.1k tokens/s",
                           "202 MB",
                           "202,000,000",
                           "21.0%",
                           "661 MB",
                           "290 MB",
                           "303 MB",
                           "aten::bmm",
                           "152 ms",
                           "66.6%",
                           "76.1 ms",
                           "  weights   202 MB",
                           "1,512",
                           "3.33 GB",
                           "34.0 MB",
                           "17.0 kB",
                           "55.0 MB",
                           "1.25 s",
                           "205 MB",
                           "101 MB",
                           "<noscript>"}) {
    EXPECT_THAT(body, HasSubstr(part));
  }
  EXPECT_THAT(body, Not(HasSubstr("communication")));  // this plan has none
}

TEST(PlanPage, SaysByHowMuchAPlanDoesNotFit) {
  Json plan = small_plan();
  plan["total"] = 160109880320;
  const std::string body = body_of(plan);
  EXPECT_THAT(body, HasSubstr(">does not fit<"));
  EXPECT_THAT(body, HasSubstr("10.0 GB more than the 150 GB that there are"));
}

TEST(PlanPage, NamesTwelveKernelsAndAddsUpTheOthers) {
  Json plan = small_plan();
  plan["kernels"] = Json::array();
  for (int i = 0; i < 15; ++i) plan["kernels"].push_back({"kernel_" + std::to_string(i), 0.015 - i * 0.001});
  const std::string body = body_of(plan);
  EXPECT_THAT(body, HasSubstr("kernel_11<"));
  EXPECT_THAT(body, Not(HasSubstr("kernel_12<")));
  EXPECT_THAT(body, HasSubstr("3 others</th><td class=\"num\">6 ms"));
}

TEST(PlanPage, AsksNobodyForAnything) {
  const std::string page = plan_page(small_plan());
  for (const char* part : {"http:", "https:", " src=", "<link", "url(", "@import", "fetch("})
    EXPECT_THAT(page, Not(HasSubstr(part)));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("script-src 'sha256-"));
}

TEST(PlanPage, HostileTextsAreTexts) {
  const std::string hostile = "</script><script>alert(1)</script><img onerror=\"x\">&\x1b\xff";
  Json plan = small_plan();
  for (const char* key : {"title", "config", "unit", "bound"}) plan[key] = hostile;
  for (const char* key : {"overrides", "lines"}) plan[key] = {hostile};
  for (const char* key : {"memory_rows", "kernels"}) plan[key][0][0] = hostile;
  plan["gpus"][0]["name"] = plan["states"][0]["name"] = hostile;
  const std::string page = plan_page(plan);
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("\x1b")));
  EXPECT_THAT(page, Not(HasSubstr("\xff")));
}

TEST(PlanPage, PartsThatAreMissingAreLeftOut) {
  Json empty = small_plan();
  for (const char* key : {"overrides", "memory_rows", "lines", "kernels", "gpus", "states", "points"}) {
    Json plan = small_plan();
    plan[key] = empty[key] = Json::array();
    EXPECT_THAT(plan_page(plan), ::testing::EndsWith("</html>\n")) << key;
  }
  for (const Json& plan : {empty, Json::object(), Json(), Json::parse(R"({"memory_rows": [1], "kernels": [[]],
       "gpus": [2], "states": [null], "points": ["x"], "now": 3, "lengths_known": 4, "total": "many"})")}) {
    EXPECT_THAT(plan_page(plan), ::testing::EndsWith("</html>\n")) << plan;
  }
  const std::string body = body_of(empty);
  for (const char* id : {"id=\"memory\"", "id=\"what-if\"", "id=\"time\"", "id=\"text\"", "id=\"points\""})
    EXPECT_THAT(body, Not(HasSubstr(id)));
  Json one = small_plan();
  one["lengths_known"] = false;
  EXPECT_THAT(body_of(one), Not(HasSubstr("1,512")));
}

}  // namespace
}  // namespace octavo_train
