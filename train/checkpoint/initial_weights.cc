// SPDX-License-Identifier: MIT
#include "train/checkpoint/initial_weights.h"

#include "train/checkpoint/folder/checkpoint_choice.h"
#include "train/checkpoint/tensors.h"
#include "train/formats/safetensors.h"

#include <torch/torch.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <span>
#include <system_error>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::size_t kNamedTensors = 8;  // the most tensors that a message lists
constexpr std::string_view kWeightsFile = "model.safetensors";
const std::string kFromKey = "training.init_from: ";
const std::string kRenameKey = "training.init_rename: ";

std::string first_of(const std::vector<std::string>& names, std::string_view between = ", ") {
  const std::size_t shown = std::min(names.size(), kNamedTensors);
  std::string out = fmt::format("{}", fmt::join(std::span(names).first(shown), between));
  if (names.size() > shown) out += fmt::format(" and {} more", names.size() - shown);
  return out;
}

// Returns the weights file that a path refers to.
Result<std::string> find_weights(const std::string& path, InitialWeights& out) {
  if (!path_exists(path)) return Status::invalid(kFromKey + path + " does not exist");
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return path;
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
      return Status::invalid(fmt::format("{}{} and {} of {} would both be {}", kRenameKey,
                                         place->second->name, stored.name, *init.from, name));
    }
    out.push_back({std::move(name), &stored});
  }
  const auto unused = std::ranges::find(used, false);
  if (unused == used.end()) return out;
  const Rename& rule = init.rename[static_cast<std::size_t>(unused - used.begin())];
  std::vector<std::string> names;
  for (const StoredTensor& stored : file.tensors()) names.push_back(stored.name);
  return Status::invalid(
      fmt::format("{}\"{}\" changes no name of {} that a rule before it has left (it must match the whole "
                  "name: \"encoder.*\"); "
                  "there are {}",
                  kRenameKey, rule.from, *init.from, first_of(names)));
}

Status check_fit(const InitSettings& init, const InitialWeights& out, const std::vector<std::string>& misfits,
                 std::size_t places) {
  if (!misfits.empty())
    return Status::invalid(kFromKey + out.file + ": it is of another model: " + first_of(misfits, "; "));
  if (out.used == 0 && places > 0) {
    return Status::invalid(fmt::format(
        "{}{}: none of its names is in the model; it has {}, expected {}; init_rename gives them other names",
        kFromKey, out.file, first_of(out.left_over), first_of(out.missing)));
  }
  if (!init.strict || (out.missing.empty() && out.left_over.empty())) return {};
  std::string what;
  if (!out.missing.empty()) what = "missing in it: " + first_of(out.missing);
  if (!out.left_over.empty())
    what += (what.empty() ? "" : "; ") + ("left over from it: " + first_of(out.left_over));
  return Status::invalid(fmt::format(
      "{}{}: it does not fit the model: {}; give names with init_rename, or allow it with init_strict: false",
      kFromKey, out.file, what));
}

// Returns the number of rows of a tensor in the file and in the model, if they differ and the other
// dimensions do not.
std::optional<std::pair<std::int64_t, std::int64_t>> other_rows(const std::string& name,
                                                                const std::vector<RenamedTensor>& stored,
                                                                const NamedTensors& model) {
  const auto there = std::ranges::find(stored, name, &RenamedTensor::name);
  const auto here = std::ranges::find(model, name, [](const auto& each) { return each.first; });
  if (there == stored.end() || here == model.end()) return std::nullopt;
  const std::vector<std::int64_t>& then = there->stored->shape;
  const auto now = here->second.sizes();
  if (then.empty() || then.size() != now.size() || then[0] == now[0]) return std::nullopt;
  if (!std::equal(then.begin() + 1, then.end(), now.begin() + 1)) return std::nullopt;
  return std::pair(then[0], now[0]);
}

}  // namespace

std::optional<std::string> drop_reinitialized(const ReinitializedLayers& fresh,
                                              std::vector<RenamedTensor>& stored, NamedTensors& model) {
  for (const std::string& name : fresh.by_token) {
    const auto rows = other_rows(name, stored, model);
    if (!rows) continue;
    std::erase_if(stored, [&](const RenamedTensor& each) { return fresh.holds(each.name); });
    const auto count = std::erase_if(model, [&](const auto& each) { return fresh.holds(each.first); });
    return fmt::format("another vocabulary: {} has {} rows here and {} there, so {} start anew ({} tensors)",
                       name, rows->second, rows->first, fresh.what, count);
  }
  return std::nullopt;
}

std::vector<std::string> InitialWeights::lines() const {
  std::vector<std::string> out;
  for (const std::string& reason : skipped) out.push_back("warning: skipped " + reason);
  out.push_back(fmt::format("weights from {}: {} tensors", file, used));
  if (converted > 0) out.back() += fmt::format(", {} of them converted to another precision", converted);
  if (!renewed.empty()) out.push_back(renewed);
  if (!missing.empty()) {
    out.push_back(fmt::format("warning: missing in it, so initialised as usual: {} tensors: {}",
                              missing.size(), first_of(missing)));
  }
  if (!left_over.empty()) {
    out.push_back(
        fmt::format("warning: left over from it: {} tensors: {}", left_over.size(), first_of(left_over)));
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
