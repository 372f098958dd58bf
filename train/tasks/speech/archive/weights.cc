// See weights.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/weights.h"

#include "train/base/status.h"
#include "train/checkpoint/tensors.h"
#include "train/tasks/speech/archive/archive.h"

#include <vector>

namespace octavo_train {
namespace {

void add_list(std::string& out, const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  out += "\n" + title + " (" + std::to_string(lines.size()) + "):";
  for (const std::string& line : lines) out += "\n  " + line;
}

// Loads the tensors into the model. If `keeps` is true and the file has another vocabulary,
// speech_reinitialized_layers() keep their values, which a second line reports.
Result<std::vector<std::string>> load_tensors(const std::string& path, std::span<const StoredTensor> tensors,
                                              NamedTensors model, bool keeps) {
  std::vector<RenamedTensor> stored;
  for (const StoredTensor& tensor : tensors) stored.push_back({tensor.name, &tensor});
  std::vector<std::string> out(1);
  if (keeps) {
    if (const auto kept = drop_reinitialized(speech_reinitialized_layers(), stored, model))
      out.push_back(*kept);
  }
  const Fit fit = fit_tensors(stored, model);
  std::string wrong;
  add_list(wrong, "of another shape or type", fit.misfits);
  add_list(wrong, "missing in it", fit.missing);
  add_list(wrong, "left over from it", fit.left_over);
  if (!wrong.empty())
    return Status::invalid(path + ": its tensors are not those of the model; nothing was loaded" + wrong);
  const std::int64_t converted = copy_stored(fit);
  out[0] = "weights from " + path + ": " + std::to_string(fit.copies.size()) + " tensors";
  if (converted > 0) out[0] += ", " + std::to_string(converted) + " of them converted to another precision";
  return out;
}

}  // namespace

ReinitializedLayers speech_reinitialized_layers() {
  return {"decoder and joint", {"decoder.embedding.weight", "ctc_head.weight"}, [](const std::string& name) {
            return !name.starts_with("encoder.");
          }};
}

Result<std::vector<std::string>> load_archive(const SpeechArchive& archive, const NamedTensors& model) {
  return load_tensors(archive.path(), archive.tensors(), model, true);
}

Result<std::string> load_stored(const std::string& path, std::span<const StoredTensor> tensors,
                                const NamedTensors& model) {
  ASSIGN_OR_RETURN(auto lines, load_tensors(path, tensors, model, false));
  return std::move(lines[0]);
}

}  // namespace octavo_train
