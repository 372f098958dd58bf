// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer/piece_model.h"

#include "train/tasks/speech/tokenizer/charsmap.h"

#include <bit>
#include <cstring>
#include <functional>
#include <optional>

namespace octavo_train {
namespace {

// The field numbers of sentencepiece_model.proto that are read or written here.
enum ModelField : std::uint32_t { kPieces = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5 };
enum PieceField : std::uint32_t { kText = 1, kScore = 2, kKind = 3 };
enum TrainerField : std::uint32_t {
  kAlgorithm = 3,
  kSize = 4,
  kByteFallback = 35,
  kBegin = 41,
  kEnd = 42,
  kPad = 43
};
enum NormalizerField : std::uint32_t {
  kName = 1,
  kCharsmap = 2,
  kDummyPrefix = 3,
  kExtraSpaces = 4,
  kEscape = 5
};
enum Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Value {
  std::uint64_t number = 0;  // value of a varint, or bits of a fixed-size field
  std::string_view bytes;
};

// Reads the fields of a Protocol Buffers message in order.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  // Reads the next field. Returns false at the end, and also if the bytes are not a valid message; bad() is
  // then true.
  bool next(std::uint32_t& field, Value& value) {
    if (bytes_.empty() || bad_) return false;
    const auto tag = varint();
    if (!tag || *tag >> 3 == 0 || *tag >> 32 != 0) return fail();
    field = static_cast<std::uint32_t>(*tag >> 3);
    value = {};
    switch (*tag & 7) {
      case kVarint:
        return fixed(varint(), value);
      case kFixed64:
        return fixed(little(8), value);
      case kFixed32:
        return fixed(little(4), value);
      case kBytes: {
        const auto size = varint();
        if (!size || *size > bytes_.size()) return fail();
        value.bytes = bytes_.substr(0, *size);
        bytes_.remove_prefix(*size);
        return true;
      }
      default:
        return fail();
    }
  }
  [[nodiscard]] bool bad() const { return bad_; }

 private:
  bool fail() {
    bad_ = true;
    return false;
  }
  bool fixed(std::optional<std::uint64_t> number, Value& value) {
    if (!number) return fail();
    value.number = *number;
    return true;
  }
  std::optional<std::uint64_t> varint() {
    std::uint64_t out = 0;
    for (unsigned shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      out |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return out;
    }
    return std::nullopt;
  }
  std::optional<std::uint64_t> little(std::size_t size) {
    if (bytes_.size() < size) return std::nullopt;
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < size; ++i)
      out |= std::uint64_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
    bytes_.remove_prefix(size);
    return out;
  }

  std::string_view bytes_;
  bool bad_ = false;
};

// Calls `take` for every field. Returns false if `take` does, or if the bytes are not a valid message.
bool read_message(std::string_view bytes, const std::function<bool(std::uint32_t, const Value&)>& take) {
  Reader reader(bytes);
  std::uint32_t field = 0;
  Value value;
  while (reader.next(field, value)) {
    if (!take(field, value)) return false;
  }
  return !reader.bad();
}

bool read_piece(std::string_view bytes, TokenPiece& out) {
  return read_message(bytes, [&](std::uint32_t field, const Value& value) {
    if (field == kText) out.text = value.bytes;
    if (field == kScore) out.score = std::bit_cast<float>(static_cast<std::uint32_t>(value.number));
    if (field == kKind) {
      if (value.number < 1 || value.number > 6) return false;
      out.kind = static_cast<PieceKind>(value.number);
    }
    return true;
  });
}

bool read_trainer(std::string_view bytes, PieceModel& out) {
  return read_message(bytes, [&](std::uint32_t field, const Value& value) {
    if (field == kByteFallback) out.byte_fallback = value.number != 0;
    if (field == kAlgorithm) {
      if (value.number < 1 || value.number > 4) return false;
      out.algorithm = static_cast<PieceAlgorithm>(value.number);
    }
    return true;
  });
}

// Reads the normalizer. `problem` receives the error of an invalid character map. Every character map is
// checked, because SentencePiece uses the last one.
bool read_normalizer(std::string_view bytes, PieceModel& out, Status& problem) {
  return read_message(bytes, [&](std::uint32_t field, const Value& value) {
    if (field == kCharsmap) {
      out.charsmap = value.bytes;
      problem = check_charsmap(value.bytes);
      if (!problem.ok()) return false;
    }
    if (field == kDummyPrefix) out.add_dummy_prefix = value.number != 0;
    if (field == kExtraSpaces) out.remove_extra_whitespaces = value.number != 0;
    if (field == kEscape) out.escape_whitespaces = value.number != 0;
    return true;
  });
}

class Writer {
 public:
  void number(std::uint32_t field, std::uint64_t value) {
    varint(std::uint64_t{field} << 3 | kVarint);
    varint(value);
  }
  void real(std::uint32_t field, float value) {
    varint(std::uint64_t{field} << 3 | kFixed32);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (unsigned i = 0; i < 4; ++i) out_ += static_cast<char>(bits >> (8 * i) & 0xFF);
  }
  void bytes(std::uint32_t field, std::string_view value) {
    varint(std::uint64_t{field} << 3 | kBytes);
    varint(value.size());
    out_ += value;
  }
  [[nodiscard]] const std::string& text() const { return out_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>((value & 0x7F) | 0x80);
    out_ += static_cast<char>(value);
  }
  std::string out_;
};

}  // namespace

Result<PieceModel> read_piece_model(std::string_view bytes, const std::string& name) {
  PieceModel out, ignored;
  Status problem;
  const bool good = read_message(bytes, [&](std::uint32_t field, const Value& value) {
    if (field == kPieces) return read_piece(value.bytes, out.pieces.emplace_back());
    if (field == kTrainer) return read_trainer(value.bytes, out);
    if (field == kNormalizer) return read_normalizer(value.bytes, out, problem);
    if (field == kDenormalizer) return read_normalizer(value.bytes, ignored, problem);
    return true;
  });
  if (!problem.ok()) return Status(problem.code(), name + ": " + problem.message());
  if (!good || out.pieces.empty()) return Status::invalid(name + ": it is no model of SentencePiece");
  return out;
}

std::string write_piece_model(const PieceModel& model) {
  Writer out;
  for (const TokenPiece& piece : model.pieces) {
    Writer one;
    one.bytes(kText, piece.text);
    one.real(kScore, piece.score);
    one.number(kKind, static_cast<std::uint64_t>(piece.kind));
    out.bytes(kPieces, one.text());
  }
  constexpr auto kNone = static_cast<std::uint64_t>(-1);  // the tokenizer has no such token
  Writer trainer;
  trainer.number(kAlgorithm, static_cast<std::uint64_t>(model.algorithm));
  trainer.number(kSize, model.pieces.size());
  trainer.number(kByteFallback, model.byte_fallback ? 1 : 0);
  for (const std::uint32_t field : {kBegin, kEnd, kPad}) trainer.number(field, kNone);
  out.bytes(kTrainer, trainer.text());
  Writer normalizer;
  normalizer.bytes(kName, model.charsmap.empty() ? "identity" : "user_defined");
  normalizer.bytes(kCharsmap, model.charsmap);
  normalizer.number(kDummyPrefix, model.add_dummy_prefix ? 1 : 0);
  normalizer.number(kExtraSpaces, model.remove_extra_whitespaces ? 1 : 0);
  normalizer.number(kEscape, model.escape_whitespaces ? 1 : 0);
  out.bytes(kNormalizer, normalizer.text());
  return out.text();
}

}  // namespace octavo_train
