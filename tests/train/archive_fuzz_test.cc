// Fuzzes the archive readers with mutated archives; see fuzz.h. Ten million inputs for each reader:
//   OCTAVO_FUZZ_INPUTS=10000000 build/tests/train_archives_test --gtest_filter='ArchiveFuzz.*'
// SPDX-License-Identifier: MIT
#include "tests/train/archive_support.h"
#include "tests/train/files_support.h"
#include "tests/train/fuzz.h"
#include "train/formats/gzip.h"
#include "train/formats/pickle.h"
#include "train/formats/safetensors.h"
#include "train/formats/tar.h"
#include "train/formats/torch_file.h"
#include "train/formats/zip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

namespace octavo_train {
namespace {

// Reads every byte, so that a sanitizer reports bytes outside of the input. The sum goes to a volatile
// variable, so that the compiler does not optimize it away.
void look_at(std::span<const std::byte> bytes) {
  static volatile unsigned sink = 0;
  unsigned sum = 0;
  for (const std::byte byte : bytes) sum += std::to_integer<unsigned>(byte);
  sink = sink + sum;
}

void expect_inside(std::span<const std::byte> bytes, std::string_view file) {
  const auto all = bytes_of(file);
  ASSERT_LE(bytes.size(), all.size());
  ASSERT_TRUE(bytes.empty() ||
              (bytes.data() >= all.data() && bytes.data() + bytes.size() <= all.data() + all.size()));
  look_at(bytes);
}

std::string small_pickle() {
  using namespace pickled;
  return dict(text("a") +
              tensor(storage("0", 6, "ByteStorage"), 1, number(2) + number(2), number(1) + number(3)) +
              text("b") + "ctorch._utils\n_rebuild_parameter\n(" + tensor(storage("1", 1), 0, "", "") +
              "\x88" + std::string(kOrderedDict) + "tR");
}

TEST(ArchiveFuzz, Tar) {
  const std::vector<std::string> seeds = {
      tar_part({"./a", "one"}) + tar_part({"b/c", std::string(600, 'x')}) + tar_end(),
      tar_part({"p", "14 path=a/b/c\n", 'x'}) + tar_part({"a", "x"}) + tar_part({"l", "long", 'L'}) +
          tar_part({"b", ""}) + tar_end()};
  const std::vector<std::string> pieces = {tar_part({"./a", "x"}),
                                           tar_part({"p", "9 size=9\n", 'x'}),
                                           tar_part({"l", "../a", 'L'}),
                                           tar_part({"s", "", '2'}),
                                           tar_end(),
                                           std::string(512, '\0'),
                                           "ustar"};
  // Most mutated headers have a wrong checksum, so it is corrected in some inputs.
  fuzz(
      seeds, pieces,
      [](std::string_view given) {
        std::string file(given);
        if (file.size() >= 512 && file.size() % 2 == 0) {
          std::uint64_t sum = 8 * ' ';
          for (std::size_t i = 0; i < 512; ++i)
            sum += i >= 148 && i < 156 ? 0 : static_cast<unsigned char>(file[i]);
          char digits[8] = {};
          std::snprintf(digits, sizeof digits, "%06o", static_cast<unsigned>(sum));
          file.replace(148, 8, std::string(digits, 7) + " ");
        }
        const auto entries = read_tar(bytes_of(file));
        if (!entries.ok()) check(entries.status());
        if (entries.ok()) {
          for (const TarEntry& entry : *entries) expect_inside(entry.bytes, file);
        }
        return entries.ok();
      },
      10);
}

TEST(ArchiveFuzz, Gzip) {
  const std::string small(
      "\x1f\x8b\x08\0\0\0\0\0\x02\x03\x4b\x4c\x4a\x4e\x44\x42\0\xa3\x8c\x27\xd3\x0f\0\0\0", 25);
  const std::vector<std::string> seeds = {small, small + small};
  const std::vector<std::string> pieces = {small, "\x1f\x8b", std::string(4, '\0')};
  fuzz(
      seeds, pieces,
      [](std::string_view file) {
        const auto unpacked = inflate_gzip(bytes_of(file), 10000);
        if (!unpacked.ok()) check(unpacked.status());
        if (unpacked.ok()) {
          EXPECT_LE(unpacked->bytes().size(), 10000u);
          look_at(unpacked->bytes());
        }
        return unpacked.ok();
      },
      10);
}

TEST(ArchiveFuzz, Zip) {
  const TempFolder folder;
  const std::vector<TensorSource> sources = {make_tensor("a", "F32", {2}, 1)};
  ASSERT_TRUE(write_torch_file(folder.at("x"), sources).ok());
  const std::vector<std::string> seeds = {zip_of({{"b", "one"}, {"a", "two!"}}), read_bytes(folder.at("x"))};
  const std::vector<std::string> pieces = {"PK\1\2",
                                           "PK\3\4",
                                           "PK\5\6",
                                           "PK\6\6",
                                           "PK\6\7",
                                           "PK\7\x08",
                                           std::string(8, '\xff'),
                                           little(1, 2) + little(16, 2) + std::string(16, '\1')};
  fuzz(
      seeds, pieces,
      [](std::string_view file) {
        const auto entries = read_zip(bytes_of(file));
        if (!entries.ok()) check(entries.status());
        if (entries.ok()) {
          for (const ZipEntry& entry : *entries) expect_inside(entry.bytes, file);
        }
        return entries.ok();
      },
      10);
}

TEST(ArchiveFuzz, Safetensors) {
  const TempFolder folder;
  const std::vector<TensorSource> sources = {make_tensor("a", "F32", {2, 3}, 1),
                                             make_tensor("b", "U8", {5}, 2)};
  ASSERT_TRUE(write_safetensors(folder.at("x"), sources, {{"format", "pt"}}).ok());
  const std::vector<std::string> seeds = {read_bytes(folder.at("x")), little(2, 8) + "{}"};
  const std::vector<std::string> pieces = {"{",
                                           "}",
                                           "[",
                                           "]",
                                           ",",
                                           ":",
                                           "\"",
                                           "\\",
                                           "0",
                                           "9223372036854775807",
                                           "-1",
                                           "1e9",
                                           "\"shape\":[5]",
                                           "\"data_offsets\":[0,5]",
                                           "null",
                                           "\xc3"};
  // The length is corrected in some inputs, because otherwise few would reach the JSON parser.
  fuzz(
      seeds, pieces,
      [](std::string_view given) {
        std::string text(given);
        if (text.size() % 4 != 0 && text.size() > 8) {
          const std::size_t data = text.size() > 60 ? 29 : 0;
          text.replace(0, 8, little(text.size() - 8 - data, 8));
        }
        const auto file = Safetensors::read(bytes_of(text));
        if (!file.ok()) check(file.status());
        if (file.ok()) {
          for (const StoredTensor& tensor : file->tensors()) expect_inside(tensor.bytes, text);
        }
        return file.ok();
      },
      10);
}

TEST(ArchiveFuzz, Pickle) {
  using namespace pickled;
  const std::vector<std::string> seeds = {small_pickle(), dict("")};
  std::vector<std::string> pieces = {text("a"),
                                     number(7),
                                     tuple(""),
                                     storage("0", 6),
                                     tensor(storage("0", 6), 0, "", ""),
                                     std::string(kOrderedDict),
                                     "cos\nsystem\n",
                                     "ctorch\nFloatStorage\n",
                                     std::string("h\0", 2),
                                     std::string("q\0", 2),
                                     "\x8a\x08" + little(INT64_MAX, 8)};
  for (const char code : std::string("(.N)t}suQRb\x85\x86\x87\x88\x89")) pieces.emplace_back(1, code);
  fuzz(
      seeds, pieces,
      [](std::string_view file) {
        const auto tensors = read_pickle(bytes_of(file));
        if (!tensors.ok()) check(tensors.status());
        if (tensors.ok()) {
          for (const PickledTensor& tensor : *tensors) EXPECT_EQ(tensor.shape.size(), tensor.strides.size());
        }
        return tensors.ok();
      },
      10);
}

// Returns true if the elements are contiguous in the storage, so that no copy is needed.
bool is_dense(const PickledTensor& tensor) {
  std::int64_t next = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0; next *= tensor.shape[i]) {
    if (tensor.shape[i] > 1 && tensor.strides[i] != next) return false;
  }
  return true;
}

// Checks the tensors against the pickle. Copies may be anywhere; all other bytes must lie in the file.
void expect_described(const TorchFile& opened, std::string_view file, std::string_view pickle) {
  const auto described = read_pickle(bytes_of(pickle));
  ASSERT_TRUE(described.ok()) << described.status().message();
  for (const StoredTensor& tensor : opened.tensors()) {
    EXPECT_EQ(opened.find(tensor.name), &tensor);
    const auto told = std::ranges::find(*described, tensor.name, &PickledTensor::name);
    ASSERT_NE(told, described->end()) << tensor.name;
    if (tensor.bytes.empty()) continue;
    if (is_dense(*told)) {
      expect_inside(tensor.bytes, file);
    } else {
      EXPECT_LE(tensor.bytes.size(), file.size() + (16u << 20));
      look_at(tensor.bytes);
    }
  }
}

// Only the pickle is mutated and the archive around it is valid, so that mutations get past the archive
// reader.
TEST(ArchiveFuzz, TorchFile) {
  using namespace pickled;
  const std::vector<std::string> seeds = {small_pickle()};
  const std::vector<std::string> pieces = {
      number(0), number(1), number(6), number(0xffffffff), "\x8a\x08" + little(INT64_MAX, 8), text("0")};
  fuzz(
      seeds, pieces,
      [](std::string_view pickle) {
        const std::string file = torch_of(pickle, {"abcdef", "wxyz"});
        const auto opened = TorchFile::read(bytes_of(file));
        if (!opened.ok()) check(opened.status());
        if (opened.ok()) expect_described(*opened, file, pickle);
        return opened.ok();
      },
      10);
}

}  // namespace
}  // namespace octavo_train
