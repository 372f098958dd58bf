// What the core says of its algorithms: options with their defaults and places, and which of them switch
// moments on. Nothing about an algorithm is written down in the adapter besides the classes' names (optim.h).
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/native.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace octavo::torch {

struct Algorithm {
  std::int32_t index;
  octavo_algorithm_info info;
  std::vector<octavo_option_info> options;

  // The place of an option among `options`; its number where there is none of that name.
  std::size_t find(const std::string& name) const {
    std::size_t i = 0;
    while (i < options.size() && name != options[i].name) ++i;
    return i;
  }

  // The same; c10::Error where there is none.
  std::size_t place(const std::string& name) const {
    const std::size_t i = find(name);
    if (i < options.size()) return i;
    std::string known;
    for (const octavo_option_info& option : options)
      known += (known.empty() ? "" : ", ") + std::string(option.name);
    TORCH_CHECK(false, "octavo::torch::", info.title, ": got the option '", name, "', expected one of ",
                known);
  }
};

// c10::Error, which lists them, for a name that the library does not know.
inline const Algorithm& algorithm(const std::string& name) {
  static const std::vector<Algorithm> all = [] {
    std::vector<Algorithm> out(static_cast<std::size_t>(octavo_algorithm_count()));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto index = static_cast<std::int32_t>(i);
      out[i].index = index;
      out[i].info = native::sized<octavo_algorithm_info>();
      native::check(octavo_algorithm(index, &out[i].info), "octavo: ");
      for (std::int32_t k = 0; k < out[i].info.options; ++k) {
        out[i].options.push_back(native::sized<octavo_option_info>());
        native::check(octavo_algorithm_option(index, k, &out[i].options.back()), "octavo: ");
      }
    }
    return out;
  }();
  const std::uint32_t number = native::parse("optimizer", name);
  for (const Algorithm& each : all) {
    if (each.info.number == number) return each;
  }
  TORCH_CHECK(false, "octavo: '", name, "' has no description");
}

}  // namespace octavo::torch
