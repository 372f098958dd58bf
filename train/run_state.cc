// SPDX-License-Identifier: MIT
#include "run_state.h"

#include "train/files/checkpoint_writer.h"
#include "train/files/safetensors.h"
#include "train/files/text_file.h"

#include <octavo/backend.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace octavo::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr std::uint64_t kStateLimit = 64 << 20;  // bytes of state.json
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "state.json";
constexpr std::size_t kNamedDifferences = 8;  // a message names no more

constexpr std::array<std::pair<torch::ScalarType, const char*>, 9> kDtypes = {{{torch::kFloat32, "F32"},
                                                                               {torch::kBFloat16, "BF16"},
                                                                               {torch::kFloat16, "F16"},
                                                                               {torch::kUInt8, "U8"},
                                                                               {torch::kInt8, "I8"},
                                                                               {torch::kInt16, "I16"},
                                                                               {torch::kInt32, "I32"},
                                                                               {torch::kInt64, "I64"},
                                                                               {torch::kFloat64, "F64"}}};

std::string dtype_text(torch::ScalarType type) {
  for (const auto& [each, text] : kDtypes) {
    if (each == type) return text;
  }
  TORCH_CHECK(false, "tensors of ", c10::toString(type), " cannot be saved");
}

std::string shape_text(const std::string& dtype, at::IntArrayRef shape) {
  std::string out = dtype + " [";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

// A tensor of a GPU is copied when its turn comes, one at a time.
std::vector<TensorSource> sources_of(const NamedTensors& tensors) {
  auto held = std::make_shared<torch::Tensor>();
  std::vector<TensorSource> out;
  for (const auto& [name, tensor] : tensors) {
    out.push_back({name, dtype_text(tensor.scalar_type()), tensor.sizes().vec(),
                   [held, tensor = tensor]() -> Result<Bytes> {
                     *held = tensor.detach().cpu().contiguous();
                     return Bytes(static_cast<const std::byte*>(held->data_ptr()), held->nbytes());
                   }});
  }
  return out;
}

// A view of the file's bytes.
torch::Tensor view_of(const StoredTensor& stored) {
  for (const auto& [type, text] : kDtypes) {
    if (stored.dtype != text) continue;
    return torch::from_blob(const_cast<std::byte*>(stored.bytes.data()), stored.shape,
                            torch::TensorOptions(type));  // NOLINT: only read
  }
  return {};
}

// Why the weights of the file do not fit these parameters; empty if they do.
std::string differences(const Safetensors& file, const NamedTensors& parameters) {
  std::vector<std::string> found;
  for (const auto& [name, param] : parameters) {
    const std::string want = shape_text(dtype_text(param.scalar_type()), param.sizes());
    const StoredTensor* stored = file.find(name);
    if (stored == nullptr) {
      found.push_back(name + " is not there, expected " + want);
    } else if (const std::string have = shape_text(stored->dtype, stored->shape); have != want) {
      found.push_back(name + " is " + have + ", expected " + want);
    }
  }
  for (const StoredTensor& stored : file.tensors()) {
    if (std::none_of(parameters.begin(), parameters.end(),
                     [&](const auto& p) { return p.first == stored.name; }))
      found.push_back(stored.name + " is " + shape_text(stored.dtype, stored.shape) +
                      ", which this model has not");
  }
  std::string out;
  for (std::size_t i = 0; i < found.size() && i < kNamedDifferences; ++i)
    out += (i > 0 ? "; " : "") + found[i];
  if (found.size() > kNamedDifferences)
    out += "; and " + std::to_string(found.size() - kNamedDifferences) + " more";
  return out;
}

Result<Safetensors> fitting_weights(const std::string& path, const NamedTensors& parameters) {
  const std::string file_path = path + '/' + kModelFile;
  auto file = Safetensors::open(file_path);
  if (!file.ok()) return file.status();
  if (const std::string differ = differences(*file, parameters); !differ.empty()) {
    return Status::invalid(
        file_path + ": it is of another model or precision: " + differ +
        "; use the model and compute_dtype it was saved with, or start in another output_dir");
  }
  return file;
}

void copy_weights(const Safetensors& file, const NamedTensors& parameters) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, param] : parameters) {
    torch::Tensor to = param;
    to.copy_(view_of(*file.find(name)));
  }
}

Json to_json(const std::vector<FileRecord>& files) {
  Json out = Json::array();
  for (const FileRecord& file : files)
    out.push_back(
        {{"path", file.path}, {"size", file.size}, {"hash", file.hash}, {"held_out", file.held_out}});
  return out;
}

std::vector<FileRecord> files_from_json(const Json& json) {
  std::vector<FileRecord> out;
  for (const Json& file : json) {
    FileRecord one{file.at("path").get<std::string>(), file.at("size").get<std::int64_t>(),
                   file.at("hash").get<std::string>(), file.at("held_out").get<std::int64_t>()};
    out.push_back(std::move(one));
  }
  return out;
}

Json to_json(const RunState& state) {
  Json out = {
      {"format", kFormat},
      {"octavo", std::string(version())},
      {"step", state.step},
      {"tokens", state.tokens},
      {"sampler", {{"draws", state.draws}, {"samples", state.samples}, {"start", state.sampler_start}}},
      {"random", "a function of training.seed, the step and the pass: nothing to keep"},
      {"skipped", {{"all", state.skipped}, {"in_a_row", state.skipped_in_a_row}}},
      {"evaluated", state.evaluated},
      {"loss", {{"sum", state.loss_sum}, {"count", state.loss_count}}}};
  if (state.text)
    out["data"] = {{"train", to_json(state.text->train)}, {"validation", to_json(state.text->validation)}};
  return out;
}

RunState from_json(const Json& json) {
  RunState state;
  state.step = json.at("step").get<std::int64_t>();
  state.tokens = json.at("tokens").get<std::int64_t>();
  state.draws = json.at("sampler").at("draws").get<std::uint64_t>();
  state.samples = json.at("sampler").at("samples").get<std::int64_t>();
  state.sampler_start = json.at("sampler").at("start").get<std::uint64_t>();
  state.skipped = json.at("skipped").at("all").get<std::int64_t>();
  state.skipped_in_a_row = json.at("skipped").at("in_a_row").get<std::int64_t>();
  state.evaluated = json.at("evaluated").get<std::int64_t>();
  state.loss_sum = json.at("loss").at("sum").is_null() ? 0.0 : json.at("loss").at("sum").get<double>();
  state.loss_count = json.at("loss").at("count").get<std::int64_t>();
  if (const auto data = json.find("data"); data != json.end())
    state.text = TextRecord{files_from_json(data->at("train")), files_from_json(data->at("validation"))};
  return state;
}

// What open_split() relies on.
bool fits(const TextRecord& record) {
  return std::ranges::all_of(
      record.train, [](const FileRecord& file) { return file.held_out >= 0 && file.held_out <= file.size; });
}

// The text of state.json, and what is read from it by `use`.
template <class Use>
Status with_state(const std::string& path, Use use) {
  const std::string file = path + '/' + kStateFile;
  auto text = read_text_file(file, kStateLimit);
  if (!text.ok()) return text.status();
  try {
    const Json json = Json::parse(*text);
    if (json.at("format").get<int>() != kFormat) {
      return Status::invalid(file + ": format " + json.at("format").dump() + ", expected " +
                             std::to_string(kFormat) + ": it was saved by another version of octavo");
    }
    RunState state = from_json(json);
    if (state.text && !fits(*state.text))
      return Status::invalid(file + ": data: more bytes are held out than there are; it was changed");
    return use(json, std::move(state));
  } catch (const nlohmann::json::exception& error) {
    return Status::invalid(file + ": " + error.what() + "; it was not saved by octavo train");
  }
}

}  // namespace

Result<SavedCheckpoint> save_checkpoint(const std::string& run_folder, const RunState& state,
                                        const RunParts& parts, const std::string& config_yaml) {
  NamedTensors states;
  Json json = to_json(state);
  json["optimizer"] = Json::object();
  json["loss_scale"] = Json::object();
  parts.optimizer.save(states, json["optimizer"]);
  parts.scaler.save(json["loss_scale"]);
  const std::vector<TensorSource> weights = sources_of(parts.parameters), moments = sources_of(states);
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  const std::string text = json.dump(2) + '\n';

  std::uint64_t expected = text.size() + config_yaml.size();
  for (const auto* sources : {&weights, &moments}) {
    auto size = safetensors_size(*sources, metadata);
    if (!size.ok()) return size.status();
    expected += *size;
  }
  auto writer = CheckpointWriter::begin(run_folder, state.step, expected);
  if (!writer.ok()) return writer.status();
  Status status = writer->add_tensors(kModelFile, weights, metadata);
  if (status.ok()) status = writer->add_tensors(kOptimizerFile, moments, metadata);
  if (status.ok()) status = writer->add_text(kStateFile, text);
  if (status.ok()) status = writer->add_text("config.yaml", config_yaml);
  if (status.ok()) status = writer->commit();
  if (!status.ok()) return status;
  return SavedCheckpoint{"checkpoint-" + std::to_string(state.step),
                         static_cast<std::int64_t>(writer->bytes_written()), writer->warning()};
}

Result<RunState> load_checkpoint(const std::string& path, const RunParts& parts) {
  auto weights = fitting_weights(path, parts.parameters);
  if (!weights.ok()) return weights.status();
  auto moments = Safetensors::open(path + '/' + kOptimizerFile);
  if (!moments.ok()) return moments.status();
  RunState state;
  const Status loaded = with_state(path, [&](const Json& json, RunState found) -> Status {
    state = std::move(found);
    NamedTensors states;
    for (const StoredTensor& stored : moments->tensors()) {
      torch::Tensor tensor = view_of(stored);
      if (!tensor.defined())
        return Status::invalid(path + '/' + kOptimizerFile + ": " + stored.name + " is " + stored.dtype +
                               ", which no optimizer state is");
      // The file will be closed, and may be removed.
      states.emplace_back(stored.name, tensor.clone());
    }
    LossScaler scaler = parts.scaler;  // everything that may fail comes before the first change
    scaler.load(json.at("loss_scale"));
    if (Status bad = parts.optimizer.load(states, json.at("optimizer")); !bad.ok())
      return Status(bad.code(), path + ": " + bad.message());
    parts.scaler = scaler;
    return {};
  });
  if (!loaded.ok()) return loaded;
  copy_weights(*weights, parts.parameters);
  return state;
}

Result<RunState> read_state(const std::string& path) {
  RunState state;
  const Status read = with_state(path, [&](const Json& /*json*/, RunState found) -> Status {
    state = std::move(found);
    return {};
  });
  if (!read.ok()) return read;
  return state;
}

Status load_weights(const std::string& path, const NamedTensors& parameters) {
  auto file = fitting_weights(path, parameters);
  if (!file.ok()) return file.status();
  copy_weights(*file, parameters);
  return {};
}

}  // namespace octavo::train
