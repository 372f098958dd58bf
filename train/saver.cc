// SPDX-License-Identifier: MIT
#include "saver.h"

#include "train/files/checkpoint_folder.h"
#include "train/files/checkpoint_names.h"
#include "train/files/text_file.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <exception>

namespace octavo::train {

Saver::Saver(Session& session, Heartbeat& console, const Health& health)
    : session_(session), console_(console), health_(health), state_(session.state) {
  if (!session.resumed_from.empty()) saved_step_ = state_.step, checkpoint_ = session.resumed_from;
}

Status Saver::save() {
  if (saved_step_ == state_.step) return {};
  const auto begin = std::chrono::steady_clock::now();
  if (Status bad = save_files(); !bad.ok()) return bad;
  const auto keep = session_.settings.training.save_total_limit;
  if (keep && state_.skipped_in_a_row == 0) {
    if (Status bad = prune_checkpoints(session_.settings.output_dir, *keep); !bad.ok())
      console_.note("warning: " + bad.message());
  }
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  seconds_ += took;
  return session_.log->write({{"kind", "checkpoint"},
                              {"step", state_.step},
                              {"path", "checkpoint-" + std::to_string(state_.step)},
                              {"seconds", took},
                              {"bytes", saved_bytes_}});
}

Status Saver::save_files() {
  if (saved_step_ == state_.step) return {};
  console_.doing(session_.step_text(state_.step) + ", saving a checkpoint");
  auto saved = session_.save();
  if (!saved.ok()) {
    failed_ = true;
    return saved.status();
  }
  // What fails at every checkpoint is said at the first.
  if (!saved->warning.empty() && !warned_) console_.note("warning: " + saved->warning);
  warned_ = !saved->warning.empty();
  saved_step_ = state_.step;
  saved_bytes_ = saved->bytes;
  checkpoint_ = session_.settings.output_dir + '/' + saved->path;
  return write_config();
}

std::string Saver::rescue() {
  try {
    if (state_.step == 0 || state_.skipped_in_a_row > 0 || !save_files().ok()) return {};
    return "; step " + std::to_string(state_.step) + " is saved in " + checkpoint_;
  } catch (const std::exception&) {
    return {};
  }
}

std::string Saver::left_to_go_on_from() const {
  for (const CheckpointRef& each : list_checkpoints(session_.settings.output_dir)) {
    if (!health_.trusts(each.step)) continue;
    if (verify_checkpoint(each.path).ok()) return "; the last good checkpoint is " + each.path;
  }
  return "; no good checkpoint was saved before";
}

Status Saver::write_config() {
  if (config_written_) return {};
  config_written_ = true;
  const std::string base = session_.settings.output_dir + "/config";
  const std::string path = base + ".yaml";
  if (auto there = read_text_file(path, 1 << 20); there.ok() && *there != session_.config_yaml) {
    int number = 1;
    while (path_exists(base + '.' + std::to_string(number) + ".yaml")) ++number;
    const std::string aside = base + '.' + std::to_string(number) + ".yaml";
    if (Status bad = rename_path(path, aside); !bad.ok()) return bad;
    console_.note("the config.yaml that was there is now " + aside);
  }
  return write_text_file(path, session_.config_yaml);
}

}  // namespace octavo::train
