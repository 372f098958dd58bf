// SPDX-License-Identifier: MIT
#include "train/checkpoint/checkpoint.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_names.h"
#include "train/checkpoint/folder/checkpoint_writer.h"
#include "train/checkpoint/tensor_files.h"
#include "train/formats/safetensors.h"
#include "train/io/text_file.h"

#include <octavo/backend.h>
#include <torch/torch.h>

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

Status with_state(const std::string& path, const std::function<Status(const Json&)>& use) {
  const std::string file = path + '/' + kStateFile;
  ASSIGN_OR_RETURN(auto text, read_text_file(file, kStateLimit));
  try {
    const Json json = Json::parse(text);
    if (json.at("format").get<int>() != kFormat) {
      return Status::invalid(file + ": format " + json.at("format").dump() + ", expected " +
                             std::to_string(kFormat) + ": it was saved by another version of octavo");
    }
    return use(json);
  } catch (const nlohmann::json::exception& error) {
    return Status::invalid(file + ": " + error.what() + "; it was not saved by octavo train");
  }
}

// The tensors of a part, as views of its open file.
struct PartFile {
  std::optional<Safetensors> file;
  NamedTensors tensors;
};

Result<PartFile> open_part(const std::string& path) {
  PartFile out;
  if (!path_exists(path)) return out;
  ASSIGN_OR_RETURN(auto file, Safetensors::open(path));
  ASSIGN_OR_RETURN(auto tensors, views_of(file, path));
  out.tensors = std::move(tensors);
  out.file.emplace(std::move(file));
  return out;
}

}  // namespace

std::vector<SavedComponent> collect_components(std::span<const Checkpointable* const> parts) {
  std::vector<SavedComponent> out;
  for (const Checkpointable* part : parts) {
    SavedComponent& each = out.emplace_back(SavedComponent{std::string(part->name()), {}, Json::object()});
    part->save(each.tensors, each.numbers);
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
    json[part.name] = part.numbers;
    if (part.tensors.empty()) continue;
    files.emplace_back(file_of(part.name), sources_of(part.tensors));
    ASSIGN_OR_RETURN(auto size, safetensors_size(files.back().second, metadata));
    expected += size;
  }
  const std::string text = json.dump(2) + '\n';
  expected += text.size();
  for (const auto& [name, bytes] : kept) expected += bytes.size();

  ASSIGN_OR_RETURN(auto writer, CheckpointWriter::begin(run_folder, state.step, expected));
  Status status;
  for (const auto& [name, sources] : files) {
    if (status.ok()) status = writer.add_tensors(name, sources, metadata);
  }
  if (status.ok()) status = writer.add_text(kStateFile, text);
  if (status.ok()) status = writer.add_text("config.yaml", config_yaml);
  if (status.ok() && evaluation)
    status = writer.add_text(std::string(kEvaluationName), evaluation_text(*evaluation));
  for (const auto& [name, bytes] : kept) {
    if (status.ok()) status = writer.add_text(name, bytes);
  }
  if (status.ok()) status = writer.commit();
  if (!status.ok()) return status;
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
      const std::string name(part->name());
      auto file = open_part(path + '/' + file_of(name));
      if (!file.ok()) return file.status();
      const bool there = json.contains(name) || file->file;
      if (!there && part->is_optional()) continue;
      if (!there) {
        return Status::invalid(path + ": it has no " + name +
                               ": it was saved by another version of octavo, or is not whole");
      }
      saved.push_back({name, std::move(file->tensors), json.contains(name) ? json.at(name) : Json::object()});
      loading.push_back(part);
      if (file->file) files.push_back(std::move(*file->file));
    }
    if (before) {
      if (Status bad = before(saved); !bad.ok()) return in_path(bad);
    }
    for (std::size_t i = 0; i < saved.size(); ++i) {
      auto commit = loading[i]->load(saved[i].tensors, saved[i].numbers);
      if (!commit.ok()) return in_path(commit.status());
      commits.push_back(std::move(*commit));
    }
    return {};
  });
  if (!loaded.ok()) return loaded;
  for (const Checkpointable::Commit& commit : commits) commit();
  return state;
}

Result<RunState> saved_state(const std::string& path) {
  RunState out;
  const Status read = with_state(path, [&](const Json& json) -> Status {
    from_json(json, out);
    return {};
  });
  if (!read.ok()) return read;
  return out;
}

Result<Json> saved_data(const std::string& path) {
  Json out;
  const Status read = with_state(path, [&](const Json& json) -> Status {
    if (const auto data = json.find(kData); data != json.end()) out = *data;
    return {};
  });
  if (!read.ok()) return read;
  return out;
}

}  // namespace octavo_train
