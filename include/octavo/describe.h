// Descriptions of the algorithms: options with defaults and ranges, moments, and the meaning of weight decay.
// Adapters, the trainer and the command read them and have no separate tables. Each description is defined
// once, next to its formula (src/formula/).
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace octavo {

// The place where weight decay is applied. By name: it is added to the gradient in adam and sgd (as in
// torch), and applied to the parameter in adamw and lion.
enum class Decay : std::uint32_t { by_name = 0, coupled = 1, decoupled = 2 };

struct HyperParams {
  double lr = 1e-3;  // rounded to fp32 before anything is derived from it
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.0;   // sgd
  double dampening = 0.0;  // sgd
  bool nesterov = false;   // sgd
  bool maximize = false;
  Decay decay = Decay::by_name;
  double own[kMaxOwn] = {};  // the algorithm's own options, at the offsets of its description
  friend bool operator==(const HyperParams&, const HyperParams&) = default;
};

// The values that an option accepts. A flag is true or false.
enum class Range : std::uint32_t { any = 0, non_negative = 1, positive = 2, fraction = 3, flag = 4 };

// Returns the range as error messages name it: "a finite number of at least 0".
OCTAVO_API std::string_view text(Range range);

struct Option {
  std::string_view name;
  double value = 0.0;  // the default
  Range range = Range::any;
  std::int32_t at = -1;         // the byte offset in HyperParams of its double, or bool (flag); -1: none
  std::string_view tuple = {};  // torch's option that contains it: "betas" for beta1 and beta2
  bool switches = false;        // A value other than 0 changes the moments: a bit of GroupConfig::switches.
  bool optional = false;        // It may be None in Python, which is 0 here.
};

// A moment of an algorithm, with its names in torch and in bitsandbytes (peer).
struct Slot {
  std::string_view name, peer;
  Moment moment = Moment::first;
};

struct AlgorithmInfo {
  Algorithm number{};
  std::string_view name;               // "adamw"
  std::string_view title;              // "AdamW", the name of its classes
  Decay decay = Decay::coupled;        // the meaning of weight decay; never by_name
  std::span<const Option> options;     // in the order of torch's arguments, or bitsandbytes'
  bool update_is_rate = true;          // An update is about as large as the learning rate.
  bool first_step_fills = false;       // The first step fills the moments, so a new moment begins at step 1.
  std::uint32_t excluded_formats = 0;  // Bit i is set if the format with number i is not supported.
};

// Returns all algorithms in the order of their numbers.
OCTAVO_API std::span<const AlgorithmInfo> algorithms();
// Returns null for an unknown algorithm.
OCTAVO_API const AlgorithmInfo* describe(Algorithm algorithm);
// Returns a number that algorithms with the same formula share, as adam and adamw do.
OCTAVO_API int family_of(Algorithm algorithm);
// slots() returns the moments with these switches (bit i: the i-th switching option is on), or none for an
// unknown algorithm or combination. passes() returns how many times a step reads the gradients.
OCTAVO_API std::span<const Slot> slots(Algorithm algorithm, std::uint32_t switches);
OCTAVO_API int passes(Algorithm algorithm, std::uint32_t switches);
// Returns the bit of a switching option, or -1 if the algorithm has no such option.
OCTAVO_API int switch_bit(Algorithm algorithm, std::string_view option);

// These read and write an option that has an offset in HyperParams.
OCTAVO_API double get(const HyperParams& hyper, const Option& option);
OCTAVO_API void set(HyperParams& hyper, const Option& option, double value);
// Returns HyperParams with every default of the algorithm.
OCTAVO_API HyperParams defaults(Algorithm algorithm);

}  // namespace octavo
