// The checkpoints of a run, and the config.yaml beside them.
// SPDX-License-Identifier: MIT
#pragma once

#include "health.h"
#include "heartbeat.h"
#include "session.h"

#include <octavo/status.h>

#include <string>

namespace octavo::train {

class Saver {
 public:
  Saver(Session& session, Heartbeat& console, const Health& health);

  // Saves the current step, unless it is saved, removes what is too old, and writes that to the log.
  Status save();
  // Tries to save the current step although the run has failed; writes nothing to the log, which may be why
  // it did. Returns where it is saved, as the end of a message, or nothing.
  std::string rescue();
  // The end of that message where nothing could be saved.
  [[nodiscard]] std::string left_to_go_on_from() const;
  // Called with the first metrics or the first checkpoint, so that a run that fails at once has changed
  // nothing. If config.yaml is there with other settings, it is kept under another name.
  Status write_config();

  [[nodiscard]] const std::string& newest() const { return checkpoint_; }  // its path
  [[nodiscard]] double seconds() const { return seconds_; }                // spent on them
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  Status save_files();

  Session& session_;
  Heartbeat& console_;
  const Health& health_;
  const RunState& state_;
  std::string checkpoint_;
  std::int64_t saved_step_ = -1, saved_bytes_ = 0;
  double seconds_ = 0;
  bool failed_ = false, warned_ = false, config_written_ = false;
};

}  // namespace octavo::train
