// Reads and writes the file of a SentencePiece model, and checks its character map. See piece_model.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer/piece_model.h"

#include "train/io/little_endian.h"
#include "train/io/protobuf_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

namespace octavo_train {
namespace {

// The field numbers of sentencepiece_model.proto that are read or written here.
constexpr std::uint32_t kPieces = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5;
constexpr std::uint32_t kText = 1, kScore = 2, kKind = 3;  // of a piece
constexpr std::uint32_t kAlgorithm = 3, kSize = 4, kByteFallback = 35, kBegin = 41, kEnd = 42, kPad = 43;
constexpr std::uint32_t kName = 1, kCharsmap = 2, kDummyPrefix = 3, kExtraSpaces = 4, kEscape = 5;

struct Field {
  std::uint32_t number = 0;
  std::uint64_t value = 0;  // value of a varint, or bits of a fixed-size field
  std::string_view bytes;
};

// Removes a varint from the beginning of `bytes`.
std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t out = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    out |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) return out;
  }
  return std::nullopt;
}

// Removes a little-endian number from the beginning of `bytes`.
template <class T>
std::optional<std::uint64_t> take_little(std::string_view& bytes) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  const T out = load_little<T>(bytes, 0);
  bytes.remove_prefix(sizeof(T));
  return out;
}

// Removes a field from the beginning of a Protocol Buffers message. Returns nullopt if it is not valid.
std::optional<Field> take_field(std::string_view& message) {
  const auto tag = take_varint(message);
  if (!tag || *tag >> 3 == 0 || *tag >> 32 != 0) return std::nullopt;
  const auto type = static_cast<WireType>(*tag & 7);
  const bool is_bytes = type == WireType::bytes;
  const auto value = type == WireType::fixed64              ? take_little<std::uint64_t>(message)
                     : type == WireType::fixed32            ? take_little<std::uint32_t>(message)
                     : is_bytes || type == WireType::varint ? take_varint(message)
                                                            : std::nullopt;
  if (!value || (is_bytes && *value > message.size())) return std::nullopt;
  Field out{static_cast<std::uint32_t>(*tag >> 3), *value, {}};
  if (is_bytes) {
    out.bytes = message.substr(0, *value);
    message.remove_prefix(*value);
  }
  return out;
}

// Calls `use` for every field. Returns false if `use` does, or if the bytes are not a valid message.
bool read_message(std::string_view bytes, const std::function<bool(const Field&)>& use) {
  while (!bytes.empty()) {
    const auto field = take_field(bytes);
    if (!field || !use(*field)) return false;
  }
  return true;
}

bool read_piece(std::string_view bytes, TokenPiece& out) {
  return read_message(bytes, [&](const Field& field) {
    if (field.number == kText) out.text = field.bytes;
    if (field.number == kScore) out.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
    if (field.number != kKind) return true;
    out.kind = static_cast<PieceKind>(field.value);
    return field.value >= 1 && field.value <= 6;
  });
}

bool read_trainer(std::string_view bytes, PieceModel& out) {
  return read_message(bytes, [&](const Field& field) {
    if (field.number == kByteFallback) out.byte_fallback = field.value != 0;
    if (field.number != kAlgorithm) return true;
    out.algorithm = static_cast<PieceAlgorithm>(field.value);
    return field.value >= 1 && field.value <= 4;
  });
}

// Reads the normalizer. `problem` receives the error of an invalid character map. Every character map is
// checked, because SentencePiece uses the last one.
bool read_normalizer(std::string_view bytes, PieceModel& out, Status& problem) {
  return read_message(bytes, [&](const Field& field) {
    if (field.number == kDummyPrefix) out.add_dummy_prefix = field.value != 0;
    if (field.number == kExtraSpaces) out.remove_extra_whitespaces = field.value != 0;
    if (field.number == kEscape) out.escape_whitespaces = field.value != 0;
    if (field.number != kCharsmap) return true;
    out.charsmap = field.bytes;
    problem = check_charsmap(field.bytes);
    return problem.ok();
  });
}

// A character map has the trie's size in bytes (32 bits, little-endian), the trie's 32-bit units in the
// layout of Darts-clone, and texts that end with a zero byte. A search begins at the base of unit 0. It reads
// the unit `base ^ byte` and continues at that unit's base if the unit's label is the byte. If the unit has
// the leaf flag, the unit at the new base has the offset of a text.
struct Unit {
  std::uint32_t bits;

  [[nodiscard]] bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  [[nodiscard]] std::uint32_t text() const { return bits & 0x7FFFFFFF; }
  // Above 255 in a unit with a text's offset.
  [[nodiscard]] std::uint32_t label() const { return bits & 0x800000FF; }
  [[nodiscard]] std::uint32_t offset() const { return bits >> 10 << ((bits & 0x200) >> 6); }
};

// Visits all bases that a search can reach, depth first, each once.
class TrieWalk {
 public:
  TrieWalk(std::string_view units, std::string_view texts)
      : units_(units), texts_(texts), leaves_(units.size() / 4, kNew) {}

  // Returns a description of the first error in the trie, or an empty text.
  std::string problem() {
    if (leaves_.empty()) return "its trie is empty";
    std::string wrong = enter(unit(0).offset());
    while (wrong.empty() && !open_.empty()) wrong = open_.back().next < kBytes ? visit_next_byte() : leave();
    return wrong;
  }

 private:
  static constexpr std::uint32_t kBytes = 256;
  static constexpr std::uint8_t kMostLeaves = 32;  // on one path; the size of SentencePiece's result array
  // Other values of leaves_: the largest number of leaves on a path from the base.
  static constexpr std::uint8_t kNew = 255, kOpen = 254;

  struct Step {
    std::uint32_t base;
    std::uint32_t next = 0;   // the byte that is checked next
    std::uint8_t leaf = 0;    // 1: the child that was entered last has a leaf
    std::uint8_t leaves = 0;  // the largest number on a path through the children so far
  };

  [[nodiscard]] Unit unit(std::uint32_t place) const {
    return {load_little<std::uint32_t>(units_, std::size_t{4} * place)};
  }

  std::string enter(std::uint32_t base) {
    // Any byte may follow, so a block of 256 units must be inside the trie.
    const std::uint32_t last = base | (kBytes - 1);
    if (last >= leaves_.size()) return fmt::format("its trie leads to unit {} of {}", last, leaves_.size());
    if (leaves_[base] == kOpen) return "its trie has a cycle";
    if (leaves_[base] != kNew) return count(leaves_[base]);
    leaves_[base] = kOpen;
    open_.push_back({base});
    return "";
  }

  std::string visit_next_byte() {
    Step& step = open_.back();
    const std::uint32_t byte = step.next++, place = step.base ^ byte;
    const Unit child = unit(place);
    if (child.label() != byte) return "";
    const std::uint32_t base = place ^ child.offset();
    step.leaf = child.has_leaf() ? 1 : 0;
    if (child.has_leaf() && base < leaves_.size() && unit(base).text() >= texts_.size()) {
      return fmt::format("its trie refers to byte {} of the {} bytes of texts", unit(base).text(),
                         texts_.size());
    }
    return enter(base);
  }

  std::string leave() {
    const Step done = open_.back();
    open_.pop_back();
    leaves_[done.base] = done.leaves;
    return open_.empty() ? "" : count(done.leaves);
  }

  // Adds the child that was entered last, which has at most `leaves` leaves on a path.
  std::string count(std::uint8_t leaves) {
    Step& step = open_.back();
    step.leaves = std::max(step.leaves, static_cast<std::uint8_t>(leaves + step.leaf));
    return step.leaves <= kMostLeaves
               ? ""
               : fmt::format("its trie has more than {} texts on one path", kMostLeaves);
  }

  std::string_view units_, texts_;
  std::vector<std::uint8_t> leaves_;  // by base
  std::vector<Step> open_;
};

}  // namespace

Result<PieceModel> read_piece_model(std::string_view bytes, const std::string& name) {
  PieceModel out, ignored;
  Status problem;
  const bool good = read_message(bytes, [&](const Field& field) {
    if (field.number == kPieces) return read_piece(field.bytes, out.pieces.emplace_back());
    if (field.number == kTrainer) return read_trainer(field.bytes, out);
    if (field.number == kNormalizer) return read_normalizer(field.bytes, out, problem);
    if (field.number == kDenormalizer) return read_normalizer(field.bytes, ignored, problem);
    return true;
  });
  if (!problem.ok()) return with_context(name, problem);
  if (!good || out.pieces.empty()) return Status::invalid(name + ": it is not a SentencePiece model");
  return out;
}

std::string write_piece_model(const PieceModel& model) {
  ProtobufWriter out, trainer, normalizer;
  for (const TokenPiece& piece : model.pieces) {
    ProtobufWriter one;
    one.bytes(kText, piece.text).real(kScore, piece.score);
    out.bytes(kPieces, one.varint(kKind, static_cast<std::uint64_t>(piece.kind)).text());
  }
  constexpr auto kNone = static_cast<std::uint64_t>(-1);  // the tokenizer has no such token
  trainer.varint(kAlgorithm, static_cast<std::uint64_t>(model.algorithm))
      .varint(kSize, model.pieces.size())
      .varint(kByteFallback, model.byte_fallback ? 1 : 0);
  for (const std::uint32_t field : {kBegin, kEnd, kPad}) trainer.varint(field, kNone);
  normalizer.bytes(kName, model.charsmap.empty() ? "identity" : "user_defined")
      .bytes(kCharsmap, model.charsmap)
      .varint(kDummyPrefix, model.add_dummy_prefix ? 1 : 0)
      .varint(kExtraSpaces, model.remove_extra_whitespaces ? 1 : 0)
      .varint(kEscape, model.escape_whitespaces ? 1 : 0);
  return out.bytes(kTrainer, trainer.text()).bytes(kNormalizer, normalizer.text()).text();
}

Status check_charsmap(std::string_view charsmap) {
  if (charsmap.empty()) return {};
  const auto wrong = [](const std::string& what) {
    return Status::invalid("its precompiled_charsmap is damaged: " + what);
  };
  constexpr std::size_t kHeader = 4;
  if (charsmap.size() <= kHeader) return wrong(fmt::format("it has {} bytes", charsmap.size()));
  const std::size_t size = load_little<std::uint32_t>(charsmap, 0);
  if (size % 4 != 0 || size > charsmap.size() - kHeader) {
    return wrong(fmt::format("its trie has {} bytes, expected a multiple of 4 up to {}", size,
                             charsmap.size() - kHeader));
  }
  const std::string_view texts = charsmap.substr(kHeader + size);
  if (!texts.empty() && texts.back() != '\0') return wrong("its last text has no end");
  const std::string what = TrieWalk(charsmap.substr(kHeader, size), texts).problem();
  return what.empty() ? Status() : wrong(what);
}

}  // namespace octavo_train
