// Single steps, which need the library's internals. Tests of the public API do not link this file.
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"
#include "tests/support/buffers.h"

namespace test {

octavo::Result<octavo::StepReport> step(const octavo::GroupConfig& config,
                                        std::span<const octavo::TensorArgs> tensors,
                                        const octavo::StepArgs& args) {
  auto group = octavo::Group::create(config, tensors);
  if (!group.ok()) return group.status();
  return group->step(args);
}

octavo::Result<octavo::StepReport> TensorSet::step(const octavo::StepArgs& args) {
  auto group = octavo::Group::create(config_, this->args());
  if (!group.ok()) return group.status();
  Buffer workspace(group->workspace_bytes());
  octavo::StepArgs with_workspace = args;
  with_workspace.workspace = {workspace.data(), static_cast<std::size_t>(workspace.size())};
  auto report = group->step(with_workspace);
  if (report.ok() && !workspace.surroundings_intact())
    return octavo::Status::failed("workspace: written outside");
  return report;
}

}  // namespace test
