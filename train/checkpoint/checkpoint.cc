// SPDX-License-Identifier: MIT
#include "train/checkpoint/checkpoint.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/folder/checkpoint_writer.h"
#include "train/checkpoint/tensors.h"
#include "train/formats/safetensors.h"
#include "train/io/text_file.h"

#include <octavo/backend.h>
#include <torch/torch.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <map>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr std::uint64_t kStateLimit = 64 << 20;  // bytes of state.json
constexpr const char* kStateFile = "state.json";
constexpr const char* kData = "data";

std::string file_of(std::string_view part) { return std::string(part) + ".safetensors"; }

// Calls use() with the contents of state.json.
Status with_state(const std::string& path, const std::function<Status(const Json&)>& use) {
  const std::string file = path + '/' + kStateFile;
  ASSIGN_OR_RETURN(auto text, read_text_file(file, kStateLimit));
  try {
    const Json json = Json::parse(text);
    if (json.at("format").get<int>() != kFormat) {
      return Status::invalid(
          fmt::format("{}: format {}, expected {}: it was saved by another version of octavo", file,
                      json.at("format").dump(), kFormat));
    }
    return use(json);
  } catch (const nlohmann::json::exception& error) {
    return Status::invalid(file + ": " + error.what() + "; it was not saved by octavo train");
  }
}

}  // namespace

void to_json(Json& json, const RunState& state) {
  json["step"] = state.step;
  json["units"] = state.units;
  json["sampler"] = {{"draws", state.position}, {"samples", state.samples}, {"start", state.sampler_start}};
  json["random"] = "a function of training.seed, the step and the pass: nothing to keep";
  json["skipped"] = {{"all", state.skipped}, {"in_a_row", state.skipped_in_a_row}};
  if (state.left_out > 0) json["left_out"] = {{"samples", state.left_out}, {"passes", state.passes_left_out}};
  json["evaluated"] = state.evaluated;
  json["loss"] = {{"sum", state.loss_sum}, {"count", state.loss_count}};
  if (state.ranks > 0) json["ranks"] = state.ranks, json["batches_per_step"] = state.batches_per_step;
  if (state.first_step > 0) json["first_step"] = state.first_step;
}

void from_json(const Json& json, RunState& state) {
  state.step = json.at("step").get<std::int64_t>();
  // Version 0.1 named this field tokens.
  state.units = json.at(json.contains("units") ? "units" : "tokens").get<std::int64_t>();
  state.position = json.at("sampler").at("draws").get<std::uint64_t>();
  state.samples = json.at("sampler").at("samples").get<std::int64_t>();
  state.sampler_start = json.at("sampler").at("start").get<std::uint64_t>();
  state.skipped = json.at("skipped").at("all").get<std::int64_t>();
  state.skipped_in_a_row = json.at("skipped").at("in_a_row").get<std::int64_t>();
  if (json.contains("left_out")) {
    state.left_out = json.at("left_out").at("samples").get<std::int64_t>();
    state.passes_left_out = json.at("left_out").at("passes").get<std::int64_t>();
  }
  state.evaluated = json.at("evaluated").get<std::int64_t>();
  state.loss_sum = json.at("loss").at("sum").is_null() ? 0.0 : json.at("loss").at("sum").get<double>();
  state.loss_count = json.at("loss").at("count").get<std::int64_t>();
  state.first_step = json.value("first_step", std::int64_t{0});
  if (!json.contains("ranks")) return;
  state.ranks = json.at("ranks").get<std::int64_t>();
  state.batches_per_step = json.at("batches_per_step").get<std::int64_t>();
}

void ModelComponent::save(NamedTensors& tensors, Json& /*scalars*/) const {
  tensors.insert(tensors.end(), tensors_.begin(), tensors_.end());
}

Result<Checkpointable::Commit> ModelComponent::load(const NamedTensors& tensors, const Json& /*scalars*/) {
  if (const std::string differ = differences(tensors, tensors_); !differ.empty()) {
    return Status::invalid(
        "its weights are of another model or precision: " + differ +
        "; use the model and compute_dtype it was saved with, or start in another output_dir" +
        kConvertAdvice);
  }
  return Commit([this, tensors] { copy_tensors(tensors, tensors_); });
}

std::vector<SavedComponent> collect_components(std::span<const Checkpointable* const> parts) {
  std::vector<SavedComponent> out;
  for (const Checkpointable* part : parts) {
    SavedComponent& each = out.emplace_back(SavedComponent{std::string(part->name()), {}, Json::object()});
    part->save(each.tensors, each.scalars);
  }
  return out;
}

Result<SavedCheckpoint> save_checkpoint(const std::string& run_folder, const RunState& state,
                                        const Json& data, std::span<const SavedComponent> parts,
                                        const std::string& config_yaml,
                                        const std::optional<EvaluationRecord>& evaluation,
                                        const std::map<std::string, std::string>& kept) {
  Json json = {{"format", kFormat}, {"octavo", std::string(octavo::version())}};
  to_json(json, state);
  if (!data.is_null()) json[kData] = data;
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::vector<std::pair<std::string, std::vector<TensorSource>>> files;
  std::uint64_t expected = config_yaml.size();
  for (const SavedComponent& part : parts) {
    json[part.name] = part.scalars;
    if (part.tensors.empty()) continue;
    files.emplace_back(file_of(part.name), sources_of(part.tensors));
    ASSIGN_OR_RETURN(auto size, safetensors_size(files.back().second, metadata));
    expected += size;
  }
  const std::string text = json.dump(2) + '\n';
  expected += text.size();
  for (const auto& [name, bytes] : kept) expected += bytes.size();

  ASSIGN_OR_RETURN(auto writer, CheckpointWriter::begin(run_folder, state.step, expected));
  for (const auto& [name, sources] : files) RETURN_IF_ERROR(writer.add_tensors(name, sources, metadata));
  RETURN_IF_ERROR(writer.add_text(kStateFile, text));
  RETURN_IF_ERROR(writer.add_text("config.yaml", config_yaml));
  if (evaluation)
    RETURN_IF_ERROR(writer.add_text(std::string(kEvaluationName), evaluation_text(*evaluation)));
  for (const auto& [name, bytes] : kept) RETURN_IF_ERROR(writer.add_text(name, bytes));
  RETURN_IF_ERROR(writer.commit());
  return SavedCheckpoint{CheckpointName{state.step}.text(), static_cast<std::int64_t>(writer.bytes_written()),
                         writer.warning()};
}

Result<RunState> load_checkpoint(const std::string& path, std::span<Checkpointable* const> parts,
                                 const BeforeLoad& before) {
  RunState state;
  std::vector<Safetensors> files;  // the tensors of `saved` are views of these files
  std::vector<Checkpointable::Commit> commits;
  const auto in_path = [&](const Status& bad) { return Status(bad.code(), path + ": " + bad.message()); };
  const Status loaded = with_state(path, [&](const Json& json) -> Status {
    from_json(json, state);
    std::vector<SavedComponent> saved;
    std::vector<Checkpointable*> loading;
    for (Checkpointable* part : parts) {
      const std::string name(part->name()), file = path + '/' + file_of(name);
      const bool has_file = path_exists(file);
      if (!has_file && !json.contains(name)) {
        if (part->is_optional()) continue;
        return Status::invalid(fmt::format(
            "{}: it has no {}: it was saved by another version of octavo, or is not whole", path, name));
      }
      loading.push_back(part);
      SavedComponent& each = saved.emplace_back(SavedComponent{name, {}, json.value(name, Json::object())});
      if (!has_file) continue;
      ASSIGN_OR_RETURN(auto opened, Safetensors::open(file));
      ASSIGN_OR_RETURN(each.tensors, views_of(opened, file));
      files.push_back(std::move(opened));
    }
    if (before) {
      if (Status bad = before(saved); !bad.ok()) return in_path(bad);
    }
    for (std::size_t i = 0; i < saved.size(); ++i) {
      auto commit = loading[i]->load(saved[i].tensors, saved[i].scalars);
      if (!commit.ok()) return in_path(commit.status());
      commits.push_back(std::move(*commit));
    }
    return {};
  });
  RETURN_IF_ERROR(loaded);
  for (const Checkpointable::Commit& commit : commits) commit();
  return state;
}

Result<RunState> saved_state(const std::string& path) {
  RunState out;
  RETURN_IF_ERROR(with_state(path, [&](const Json& json) -> Status {
    from_json(json, out);
    return {};
  }));
  return out;
}

Result<Json> saved_data(const std::string& path) {
  Json out;
  RETURN_IF_ERROR(with_state(path, [&](const Json& json) -> Status {
    out = json.value(kData, Json());
    return {};
  }));
  return out;
}

}  // namespace octavo_train
