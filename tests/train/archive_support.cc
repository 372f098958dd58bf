// See archive_support.h.
// SPDX-License-Identifier: MIT
#include "train/archive_support.h"

#include <cstdio>

namespace octavo_train {

namespace {

std::string octal(std::uint64_t value, int digits) {
  std::string text(static_cast<std::size_t>(digits), '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, value >>= 3)
    *digit = static_cast<char>('0' + (value & 7));
  return text;
}

}  // namespace

std::string tar_part(const TarPart& part) {
  std::string block(512, '\0');
  block.replace(0, part.name.size(), part.name);
  block.replace(100, 7, "0000644");
  const std::string size = part.size.empty() ? octal(part.data.size(), 11) : part.size;
  block.replace(124, size.size(), size);
  block.replace(148, 8, "        ");
  block[156] = part.type;
  block.replace(257, part.magic.size(), part.magic);
  block.replace(345, part.prefix.size(), part.prefix);
  std::uint64_t sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  block.replace(148, 7, octal(sum, 6) + '\0');
  return block + part.data + std::string((512 - part.data.size() % 512) % 512, '\0');
}

std::string tar_end() { return std::string(1024, '\0'); }

std::string zip_of(const std::vector<ZipPart>& parts) {
  std::string file;
  std::string directory;
  for (const auto& [name, data] : parts) {
    // Version, flags, method, time, date; CRC 0; sizes twice; lengths of the name and the extra fields.
    const std::string common = std::string(10, '\0') + little(0, 4) + little(data.size(), 4) +
                               little(data.size(), 4) + little(name.size(), 2) + little(0, 2);
    directory += "PK\1\2" + little(20, 2) + common + std::string(10, '\0') + little(file.size(), 4) + name;
    file += "PK\3\4" + common + name + data;
  }
  const std::string end = "PK\5\6" + little(0, 4) + little(parts.size(), 2) + little(parts.size(), 2) +
                          little(directory.size(), 4) + little(file.size(), 4) + little(0, 2);
  return file + directory + end;
}

namespace pickled {

std::string text(std::string_view value) { return "X" + little(value.size(), 4) + std::string(value); }
std::string number(std::uint32_t value) { return "J" + little(value, 4); }
std::string tuple(std::string_view items) { return "(" + std::string(items) + "t"; }

std::string storage(std::string_view key, std::uint32_t elements, std::string_view kind) {
  return tuple(text("storage") + "ctorch\n" + std::string(kind) + "\n" + text(key) + text("cpu") +
               number(elements)) +
         "Q";
}

std::string tensor(std::string_view storage, std::uint32_t offset, std::string_view shape,
                   std::string_view strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n" +
         tuple(std::string(storage) + number(offset) + tuple(shape) + tuple(strides) + "\x89" +
               std::string(kOrderedDict)) +
         "R";
}

std::string dict(std::string_view items) { return "\x80\x02}(" + std::string(items) + "u."; }

}  // namespace pickled

std::string torch_of(std::string_view pickle, const std::vector<std::string>& storages) {
  std::vector<ZipPart> parts = {{"archive/data.pkl", std::string(pickle)}, {"archive/byteorder", "little"}};
  for (std::size_t i = 0; i < storages.size(); ++i)
    parts.push_back({"archive/data/" + std::to_string(i), storages[i]});
  return zip_of(parts);
}

}  // namespace octavo_train
