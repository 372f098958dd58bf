// Finds the GPU that a text names: a name in any spelling, a size, or the local one.
// SPDX-License-Identifier: MIT
#include "planner/gpus.h"
#include "planner/invalid_argument.h"

#include <octavo/backend.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace octavo::plan {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return c >= 'a' && c <= 'z'; }
char small(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string keys() {
  std::string list;
  for (const Card& card : cards()) list.append(list.empty() ? "" : ", ").append(card.gpu.key);
  return list;
}
std::string expected() { return "one of " + keys() + "; or a size such as 24GB; or this"; }

std::string quoted(std::string_view text) { return std::string("'").append(text).append("'"); }

// `name` is in the form of plain().
bool is_called(const Card& card, std::string_view name) {
  if (name.empty()) return false;
  if (plain(card.gpu.key) == name || plain(card.gpu.name) == name) return true;
  for (std::string_view rest = card.others; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == name) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

const Card* called(std::string_view text) {
  const std::string name = plain(text);
  const auto found =
      std::find_if(cards().begin(), cards().end(), [&](const Card& card) { return is_called(card, name); });
  return found == cards().end() ? nullptr : &*found;
}

// Returns the number of "24GB", "24 GiB", "7.5g", or nothing if the text is not a size.
std::optional<double> size_of(std::string_view text) {
  std::string joined;
  for (const char c : text) {
    if (c != ' ') joined += small(c);
  }
  double number = 0, place = 1;
  bool after_point = false;
  std::size_t i = 0;
  for (; i < joined.size() && (is_digit(joined[i]) || (joined[i] == '.' && !after_point)); ++i) {
    if (joined[i] == '.') {
      after_point = true;
      continue;
    }
    if (after_point) place /= 10;
    number = after_point ? number + place * (joined[i] - '0') : 10 * number + (joined[i] - '0');
  }
  const std::string unit = joined.substr(i);
  if (i == 0 || (unit != "g" && unit != "gb" && unit != "gib")) return std::nullopt;
  return number;
}

// A step consists of matmuls and memory traffic, so both count.
double speed(const Gpu& gpu) { return gpu.bandwidth * gpu.flops[static_cast<std::size_t>(Precision::fp16)]; }

// Formats a number of gigabytes: "24", "7.5".
std::string number_text(double number) {
  std::string text = std::to_string(std::round(number * 100) / 100);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

Result<Gpu> of_size(std::string_view text, double gigabytes) {
  const Gpu* found = nullptr;
  double most = 0;
  for (const Gpu& gpu : known_gpus()) {
    most = std::max<double>(most, gpu.gigabytes);
    if (gpu.gigabytes < gigabytes) continue;
    const bool exact = gpu.gigabytes == gigabytes;
    const bool found_exact = found != nullptr && found->gigabytes == gigabytes;
    if (found == nullptr || (exact && !found_exact) || (exact == found_exact && speed(gpu) < speed(*found))) {
      found = &gpu;
    }
  }
  if (found == nullptr || !(gigabytes >= 1)) {
    return kInvalid("gpu", quoted(text), "a size from 1GB to " + number_text(most) + "GB");
  }
  Gpu gpu = *found;
  if (gpu.gigabytes == gigabytes) return gpu;
  const std::string size = number_text(gigabytes);
  gpu.key = size + "gb";
  gpu.name += " with " + size + " GB";
  // The memory that the driver reserves is reduced in proportion.
  gpu.memory = static_cast<std::int64_t>(static_cast<double>(gpu.memory) * gigabytes / gpu.gigabytes);
  gpu.gigabytes = static_cast<int>(std::ceil(gigabytes));
  return gpu;
}

// "this" is the first GPU, "this:1" the second. Returns nothing for any other text.
std::optional<std::size_t> number_here(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  if (plain(text.substr(0, colon)) != "this") return std::nullopt;
  if (colon == text.size()) return 0;
  std::size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

Result<Gpu> of_this_machine(std::string_view text, std::size_t number) {
  const GpuReport report = list_gpus();
  if (report.gpus.empty()) {
    return Status::unsupported("[plan] gpu: got ", quoted(text), ", but this machine has none (", report.note,
                               "); expected ", expected());
  }
  if (number >= report.gpus.size()) {
    return kInvalid("gpu", quoted(text),
                    "this:0 to this:" + std::to_string(report.gpus.size() - 1) + ", the local GPUs");
  }
  const GpuInfo& here = report.gpus[number];
  const Card* card = called(here.name);
  if (card == nullptr) {
    return Status::unsupported("[plan] gpu: got ", quoted(text), ", which is '", here.name,
                               "', which is not in the list; expected the most similar one: ", expected());
  }
  // The driver may use one name for two sizes.
  const auto away = [&](const Card* each) { return std::abs(each->gpu.memory - here.memory_bytes); };
  for (const Card& each : cards()) {
    if (each.gpu.name.starts_with(here.name + " ") && away(&each) < away(card)) card = &each;
  }
  Gpu gpu = card->gpu;
  gpu.device = static_cast<int>(number);
  gpu.memory = here.memory_bytes;
  gpu.multiprocessors = here.multiprocessors;
  gpu.compute_major = here.compute_major;
  gpu.compute_minor = here.compute_minor;
  return gpu;
}

}  // namespace

std::string plain(std::string_view text) {
  std::string found, word;
  const auto end_word = [&] {
    if (word != "nvidia" && word != "geforce" && word != "tesla" && word != "gpu") found += word;
    word.clear();
  };
  for (const char each : text) {
    const char c = small(each);
    if (is_letter(c) || is_digit(c)) {
      word += c;
    } else {
      end_word();
    }
  }
  end_word();
  return found;
}

Result<Gpu> find_gpu(std::string_view text) {
  if (const auto number = number_here(text)) return of_this_machine(text, *number);
  if (const Card* card = called(text); card != nullptr) return card->gpu;
  if (const std::optional<double> size = size_of(text)) return of_size(text, *size);
  return kInvalid("gpu", quoted(text), expected());
}

}  // namespace octavo::plan
