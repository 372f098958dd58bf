// Exports the models of the listed tasks.
// SPDX-License-Identifier: MIT
#include "train/tasks/export.h"

#include "train/tasks/entry.h"

namespace octavo_train {

Status export_model(const ModelExport& request) {
#define OCTAVO_TASK_EXPORT(name) \
  if (request.settings.task == #name) return export_##name##_task(request);
#include "train/tasks/list.h"
  return Status::unsupported("a model of the task " + request.settings.task +
                             " has no format of other programs: its weights are in " + request.checkpoint +
                             "/model.safetensors, which safetensors.torch.load_file reads");
}

}  // namespace octavo_train
