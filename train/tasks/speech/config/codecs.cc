// SPDX-License-Identifier: MIT
#include "train/tasks/speech/config/codecs.h"

#include <octavo/transducer.h>

#include <algorithm>
#include <optional>
#include <string>

namespace octavo_train {

Codec<std::vector<std::int64_t>> duration_list() {
  constexpr std::int64_t kLongest = 1000;
  constexpr auto kMost = static_cast<std::size_t>(octavo::kMaxTransducerDurations);
  auto read = [number =
                   integer(0, kLongest)](const YamlNode& node) -> std::optional<std::vector<std::int64_t>> {
    std::vector<std::int64_t> out;
    if (node.kind != YamlNode::Kind::list || node.items.size() > kMost) return std::nullopt;
    for (const YamlNode& item : node.items) {
      const auto value = number.read(item);
      if (!value || std::ranges::find(out, *value) != out.end()) return std::nullopt;
      out.push_back(*value);
    }
    const bool advances = std::ranges::any_of(out, [](std::int64_t each) { return each > 0; });
    return advances ? std::optional(out) : std::nullopt;
  };
  auto write = [](const std::vector<std::int64_t>& values) {
    std::string out;
    for (const std::int64_t value : values) out += (out.empty() ? "" : ", ") + std::to_string(value);
    return "[" + out + "]";
  };
  return {"a list of 1 to " + std::to_string(kMost) + " numbers from 0 to " + std::to_string(kLongest) +
              ", such as [0, 1, 2, 3, 4], no two equal and one above 0",
          read, write};
}

Codec<std::int64_t> odd_number(std::int64_t high) {
  Codec<std::int64_t> codec = integer(1, high);
  codec.expected = "an odd number from 1 to " + std::to_string(high);
  codec.read = [any = codec.read](const YamlNode& node) {
    const auto value = any(node);
    return value && *value % 2 == 1 ? value : std::nullopt;
  };
  return codec;
}

}  // namespace octavo_train
