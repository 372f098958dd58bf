// plan_page_writer IN OUT: writes the page of the prediction that IN contains as JSON, for
// tests/apps/test_plan_page.py.
// SPDX-License-Identifier: MIT
#include "train/report/page.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "expected: plan_page_writer IN OUT\n";
    return 2;
  }
  std::ifstream in(argv[1], std::ios::binary);
  const auto data = nlohmann::ordered_json::parse(in, nullptr, false);
  if (data.is_discarded()) {
    std::cerr << argv[1] << ": expected JSON\n";
    return 1;
  }
  std::ofstream out(argv[2], std::ios::binary);
  out << octavo_train::plan_page(data);
  return out.flush() ? 0 : 1;
}
