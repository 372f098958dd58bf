// A file of DeepSpeed, or the same keys below training.deepspeed, as values of the trainer's own keys.
//
// What has no effect here gets a note, and what is left is an error: nothing is dropped in silence. "auto" is
// the value that the config has. JSON is read as YAML, of which it is a part.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/node.h"

#include <octavo/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// A value for a key of the trainer.
struct DeepSpeedValue {
  std::string_view key;  // training.parallel
  std::string from;      // zero_optimization.stage
  YamlNode value;        // as the trainer's key takes it
  TextPlace place;       // of the word in the file
};

struct DeepSpeedSettings {
  std::vector<DeepSpeedValue> values;
  // ZeRO-2 with its optimizer on the CPU: DeepSpeed then keeps gradients in host memory, too.
  bool offloads_gradients = false;
  std::vector<std::string> notes;  // "ds.json:18:5: zero_optimization.overlap_comm: without effect: …"
};

// Errors have the place, the key and what to do.
Result<DeepSpeedSettings> read_deepspeed(const YamlNode& root, const Source& source);
// Of a file's text.
Result<DeepSpeedSettings> parse_deepspeed(std::string_view text, const Source& source);

}  // namespace octavo::train
