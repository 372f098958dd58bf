// SPDX-License-Identifier: MIT
#include "train/checkpoint/initial_weights.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_choice.h"
#include "train/checkpoint/folder/checkpoint_names.h"
#include "train/checkpoint/stored_tensors.h"
#include "train/formats/safetensors.h"

#include <torch/torch.h>

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::size_t kNamedTensors = 8;  // the most tensors that a message lists
constexpr std::string_view kWeightsFile = "model.safetensors";
const std::string kFromKey = "training.init_from: ";
const std::string kRenameKey = "training.init_rename: ";

std::string first_of(const std::vector<std::string>& names, std::string_view between = ", ") {
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < kNamedTensors; ++i)
    out += (i > 0 ? std::string(between) : "") + names[i];
  if (names.size() > kNamedTensors) out += " and " + std::to_string(names.size() - kNamedTensors) + " more";
  return out;
}

bool is_folder(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// Returns the weights file that a path refers to.
Result<std::string> find_weights(const std::string& path, InitialWeights& out) {
  if (!path_exists(path)) return Status::invalid(kFromKey + path + " does not exist");
  if (!is_folder(path)) return path;
  const std::string inside = path + '/' + std::string(kWeightsFile);
  // A folder with weights but without a checkpoint's checksums was written by another program.
  if (path_exists(inside) && !path_exists(path + "/checksums.txt")) return inside;
  constexpr std::array<std::string_view, 1> kNeeded = {kWeightsFile};
  auto chosen = choose_checkpoint(path, "", kNeeded);
  if (!chosen.ok()) return Status(chosen.status().code(), kFromKey + chosen.status().message());
  out.skipped = chosen->skipped;
  return chosen->path + '/' + std::string(kWeightsFile);
}

// Returns every tensor of the file under its name in the model.
Result<std::vector<RenamedTensor>> rename_all(const InitSettings& init, const Safetensors& file) {
  std::vector<RenamedTensor> out;
  std::map<std::string, const StoredTensor*> places;  // keys: names in the model
  std::vector<bool> used(init.rename.size(), false);
  for (const StoredTensor& stored : file.tensors()) {
    std::string name = stored.name;
    for (std::size_t i = 0; i < init.rename.size(); ++i) {
      auto other = renamed(init.rename[i], stored.name);
      if (!other) continue;
      name = std::move(*other);
      used[i] = true;
      break;
    }
    const auto [place, fresh] = places.emplace(name, &stored);
    if (!fresh) {
      return Status::invalid(kRenameKey + place->second->name + " and " + stored.name + " of " + *init.from +
                             " would both be " + name);
    }
    out.push_back({std::move(name), &stored});
  }
  const auto unused = std::ranges::find(used, false);
  if (unused == used.end()) return out;
  const Rename& rule = init.rename[static_cast<std::size_t>(unused - used.begin())];
  std::vector<std::string> names;
  for (const StoredTensor& stored : file.tensors()) names.push_back(stored.name);
  return Status::invalid(
      kRenameKey + '"' + rule.from + "\" changes no name of " + *init.from +
      " that a rule before it has left (it must match the whole name: \"encoder.*\"); there are " +
      first_of(names));
}

Status check_fit(const InitSettings& init, const InitialWeights& out, const std::vector<std::string>& misfits,
                 std::size_t places) {
  if (!misfits.empty())
    return Status::invalid(kFromKey + out.file + ": it is of another model: " + first_of(misfits, "; "));
  if (out.used == 0 && places > 0) {
    return Status::invalid(kFromKey + out.file + ": none of its names is in the model; it has " +
                           first_of(out.left_over) + ", expected " + first_of(out.missing) +
                           "; init_rename gives them other names");
  }
  if (!init.strict || (out.missing.empty() && out.left_over.empty())) return {};
  std::string what;
  if (!out.missing.empty()) what = "missing in it: " + first_of(out.missing);
  if (!out.left_over.empty())
    what += (what.empty() ? "" : "; ") + ("left over from it: " + first_of(out.left_over));
  return Status::invalid(kFromKey + out.file + ": it does not fit the model: " + what +
                         "; give names with init_rename, or allow it with init_strict: false");
}

}  // namespace

std::vector<std::string> InitialWeights::lines() const {
  std::vector<std::string> out;
  for (const std::string& reason : skipped) out.push_back("warning: skipped " + reason);
  out.push_back(
      "weights from " + file + ": " + std::to_string(used) + " tensors" +
      (converted > 0 ? ", " + std::to_string(converted) + " of them converted to another precision" : ""));
  if (!renewed.empty()) out.push_back(renewed);
  if (!missing.empty()) {
    out.push_back("warning: missing in it, so initialised as usual: " + std::to_string(missing.size()) +
                  " tensors: " + first_of(missing));
  }
  if (!left_over.empty()) {
    out.push_back("warning: left over from it: " + std::to_string(left_over.size()) +
                  " tensors: " + first_of(left_over));
  }
  return out;
}

Result<InitialWeights> load_initial_weights(const InitSettings& init, const NamedTensors& all,
                                            const ReinitializedLayers& fresh) {
  InitialWeights out;
  ASSIGN_OR_RETURN(auto path, find_weights(*init.from, out));
  out.file = path;
  auto file = Safetensors::open(out.file);
  if (!file.ok()) return Status(file.status().code(), kFromKey + file.status().message());
  ASSIGN_OR_RETURN(auto places, rename_all(init, *file));

  NamedTensors model = all;
  if (auto line = drop_reinitialized(fresh, places, model)) out.renewed = std::move(*line);
  Fit fit = fit_tensors(places, model);
  out.missing = std::move(fit.missing);
  out.left_over = std::move(fit.left_over);
  out.used = std::ssize(fit.copies);
  RETURN_IF_ERROR(check_fit(init, out, fit.misfits, model.size()));
  out.converted = copy_stored(fit);
  return out;
}

}  // namespace octavo_train
