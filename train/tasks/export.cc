// Exports the models of the listed tasks.
// SPDX-License-Identifier: MIT
#include "train/tasks/export.h"

#include "train/config/task_config.h"
#include "train/tasks/list.h"

namespace octavo_train {
namespace {

template <class Entry>
Status write(const ModelExport& request) {
  if constexpr (requires { Entry::export_model(request); }) {
    return Entry::export_model(request);
  } else {
    return unsupported_error(
        "a model of the task {} cannot be exported to other formats: its weights are in "
        "{}/model.safetensors, which safetensors.torch.load_file reads",
        request.settings.task, request.checkpoint);
  }
}

template <class... Entry>
Status write_listed(const ModelExport& request, TaskList<Entry...> /*list*/) {
  Status out;
  ((Entry::config().name == request.settings.task ? void(out = write<Entry>(request)) : void()), ...);
  return out;
}

}  // namespace

Status export_model(const ModelExport& request) { return write_listed(request, Tasks{}); }

}  // namespace octavo_train
