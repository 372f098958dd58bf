// Converts a DeepSpeed config file, or the same keys below training.deepspeed, to values of the trainer's own
// keys.
//
// A key that has no effect here gets a note, and an unsupported key is an error: no key is dropped silently.
// The value "auto" means the config's own value. JSON is read as YAML, because it is a subset of YAML.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/yaml.h"

#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// A value for one of the trainer's keys.
struct DeepSpeedValue {
  std::string_view key;  // training.parallel
  std::string from;      // zero_optimization.stage
  YamlNode value;        // in the form that the trainer's key accepts
  TextPlace place;       // place of the DeepSpeed key in the file
};

struct DeepSpeedSettings {
  std::vector<DeepSpeedValue> values;
  // True for ZeRO-2 with the optimizer on the CPU, because DeepSpeed then keeps gradients in host memory too.
  bool offloads_gradients = false;
  std::vector<std::string> notes;  // "ds.json:18:5: zero_optimization.overlap_comm: without effect: …"
};

// Converts a parsed mapping. Errors contain the place, the key and the fix.
Result<DeepSpeedSettings> read_deepspeed(const YamlNode& root, const Source& source);
// Parses and converts the text of a file.
Result<DeepSpeedSettings> parse_deepspeed(std::string_view text, const Source& source);

}  // namespace octavo_train
