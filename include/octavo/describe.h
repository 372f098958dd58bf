// What every algorithm says of itself: its options with defaults and ranges, the moments it keeps, what
// weight decay means. Adapters, the trainer and the command read these and keep no tables of their own; the
// text is written once, beside the formula (src/formula/).
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace octavo {

// Where weight decay is applied. By name: it is added to the gradient in adam and sgd (as in torch), and
// applied to the parameter in adamw and lion.
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
  double own[kMaxOwn] = {};  // what the algorithm's description places here
  friend bool operator==(const HyperParams&, const HyperParams&) = default;
};

// What a number may be. A flag is true or false.
enum class Range : std::uint32_t { any = 0, non_negative = 1, positive = 2, fraction = 3, flag = 4 };

// "a finite number of at least 0": how a message says it.
OCTAVO_API std::string_view text(Range range);

struct Option {
  std::string_view name;
  double value = 0.0;  // the default
  Range range = Range::any;
  std::int32_t at = -1;         // its byte in HyperParams, a double or (a flag) a bool; -1: it only switches
  std::string_view tuple = {};  // the option of torch that it is a part of: "betas" for beta1 and beta2
  bool switches = false;        // where it is not 0 there are other moments: a bit of GroupConfig::switches
  bool optional = false;        // may be None, which is 0 here
};

// A moment that is kept, under torch's name and bitsandbytes'.
struct Slot {
  std::string_view name, peer;
  Moment moment = Moment::first;
};

struct AlgorithmInfo {
  Algorithm number{};
  std::string_view name;               // "adamw"
  std::string_view title;              // "AdamW", what classes are called
  Decay decay = Decay::coupled;        // what weight decay means; never by_name
  std::span<const Option> options;     // in the order of torch's arguments, or bitsandbytes'
  bool update_is_rate = true;          // an update is about as large as the learning rate
  bool first_step_fills = false;       // the first step fills the moments, so a new moment begins at step 1
  std::uint32_t excluded_formats = 0;  // a bit for the number of each format that it does not take
};

// All algorithms, in the order of their numbers. Unknown: null.
OCTAVO_API std::span<const AlgorithmInfo> algorithms();
OCTAVO_API const AlgorithmInfo* describe(Algorithm algorithm);
// Which formula an algorithm shares with others: adam and adamw have one number.
OCTAVO_API int family_of(Algorithm algorithm);
// The moments with these switches (bit i: the i-th switching option is on), none for an unknown algorithm or
// a combination that it does not have; and how often a step reads the gradients.
OCTAVO_API std::span<const Slot> slots(Algorithm algorithm, std::uint32_t switches);
OCTAVO_API int passes(Algorithm algorithm, std::uint32_t switches);
// The bit of a switching option; -1 where the algorithm has none of that name.
OCTAVO_API int switch_bit(Algorithm algorithm, std::string_view option);

// Reads and writes an option that has a place in HyperParams.
OCTAVO_API double get(const HyperParams& hyper, const Option& option);
OCTAVO_API void set(HyperParams& hyper, const Option& option, double value);
// HyperParams with every default of the algorithm.
OCTAVO_API HyperParams defaults(Algorithm algorithm);

}  // namespace octavo
