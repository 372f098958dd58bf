// SPDX-License-Identifier: MIT
#include "train/tasks/speech/weights.h"

#include "train/base/status.h"
#include "train/checkpoint/tensors.h"
#include "train/tasks/speech/archive.h"

#include <vector>

namespace octavo_train {
namespace {

void add_list(std::string& out, const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  out += "\n" + title + " (" + std::to_string(lines.size()) + "):";
  for (const std::string& line : lines) out += "\n  " + line;
}

std::vector<RenamedTensor> under_own_names(std::span<const StoredTensor> tensors) {
  std::vector<RenamedTensor> out;
  for (const StoredTensor& tensor : tensors) out.push_back({tensor.name, &tensor});
  return out;
}

Result<std::string> load_all(const std::string& path, const std::vector<RenamedTensor>& stored,
                             const NamedTensors& model) {
  const Fit fit = fit_tensors(stored, model);
  std::string wrong;
  add_list(wrong, "of another shape or type", fit.misfits);
  add_list(wrong, "missing in it", fit.missing);
  add_list(wrong, "left over from it", fit.left_over);
  if (!wrong.empty())
    return Status::invalid(path + ": its tensors are not those of the model; nothing was loaded" + wrong);
  const std::int64_t converted = copy_stored(fit);
  return "weights from " + path + ": " + std::to_string(fit.copies.size()) + " tensors" +
         (converted > 0 ? ", " + std::to_string(converted) + " of them converted to another precision" : "");
}

}  // namespace

ReinitializedLayers speech_reinitialized_layers() {
  return {"decoder and joint", {"decoder.embedding.weight", "ctc_head.weight"}, [](const std::string& name) {
            return !name.starts_with("encoder.");
          }};
}

Result<std::vector<std::string>> load_archive(const SpeechArchive& archive, const NamedTensors& all) {
  std::vector<RenamedTensor> stored = under_own_names(archive.tensors());
  NamedTensors model = all;
  const auto renewed = drop_reinitialized(speech_reinitialized_layers(), stored, model);
  ASSIGN_OR_RETURN(const auto line, load_all(archive.path(), stored, model));
  std::vector<std::string> out = {line};
  if (renewed) out.push_back(*renewed);
  return out;
}

Result<std::string> load_stored(const std::string& path, std::span<const StoredTensor> tensors,
                                const NamedTensors& model) {
  return load_all(path, under_own_names(tensors), model);
}

}  // namespace octavo_train
