// How ranks agree: exceptions become errors, a stage that fails on one rank fails on all ranks, and texts
// that must be equal on all ranks are compared.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/distributed/process_group.h"

#include <c10/util/Exception.h>

#include <exception>
#include <functional>
#include <span>
#include <string>

namespace octavo_train {

// Returns the first line of a torch error, without the backtrace.
std::string error_text(const c10::Error& error);

// Returns the error for any exception, with the code of an octavo_train::Error.
Status status_of(const std::exception& error);

// Runs a stage on every rank. If it fails on any rank, by a status or an exception, all ranks return the
// error of the lowest rank that failed, which names that rank. Without a process group, exceptions of the
// stage pass through.
Status run_on_all_ranks(ProcessGroup& process_group, const std::function<Status()>& stage);

// A text that must be equal on all ranks.
struct NamedText {
  std::string name;  // "settings"
  std::string text;  // lines
};

// Returns an error, equal on all ranks, if a text differs. It names the text, the ranks, and the first line
// that differs. Ranks exchange hashes, and then the text that differs. REQUIRES: the same names on all ranks.
Status check_equal_across_ranks(ProcessGroup& process_group, std::span<const NamedText> texts);

}  // namespace octavo_train
