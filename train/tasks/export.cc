// Exports the models of the listed tasks.
// SPDX-License-Identifier: MIT
#include "train/tasks/export.h"

#include "train/tasks/entry.h"

namespace octavo_train {

Status export_model(const ModelExport& request) {
#define OCTAVO_TASK_EXPORT(name) \
  if (request.settings.task == #name) return export_##name##_task(request);
#include "train/tasks/list.h"
  return unsupported_error(
      "a model of the task {} cannot be exported to other formats: its weights are in "
      "{}/model.safetensors, which safetensors.torch.load_file reads",
      request.settings.task, request.checkpoint);
}

}  // namespace octavo_train
