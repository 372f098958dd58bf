// SPDX-License-Identifier: MIT
#include "train/tasks/text/record_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

Json files_to_json(const std::vector<FileRecord>& files) {
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

}  // namespace

Json to_json(const TextRecord& record) {
  return {{"train", files_to_json(record.train)}, {"validation", files_to_json(record.validation)}};
}

Result<TextRecord> text_record(const Json& json) {
  TextRecord out{files_from_json(json.at("train")), files_from_json(json.at("validation"))};
  // open_split() relies on this.
  const bool fits = std::ranges::all_of(
      out.train, [](const FileRecord& file) { return file.held_out >= 0 && file.held_out <= file.size; });
  if (!fits) return Status::invalid("data: more bytes are held out than there are; state.json was changed");
  return out;
}

}  // namespace octavo_train
