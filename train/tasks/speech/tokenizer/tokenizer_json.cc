// Converts between a SentencePiece model and tokenizer.json; see piece_model.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer/piece_model.h"

#include "train/base/base64.h"
#include "train/io/json_depth.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWordBegin = "\u2581";

Status refused(const std::string& name, const std::string& why) {
  return unsupported_error(
      "{}: it cannot be read as a SentencePiece model without loss: {}; give the tokenizer that "
      "it was made from, model.tokenizer.model: PATH",
      name, why);
}

std::string text_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Returns a key's steps as a list: none, one, or the steps of a Sequence.
std::vector<Json> steps_of(const Json& json, const char* key, const char* inside) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return {};
  if (text_at(*found, "type") == "Sequence") return found->at(inside).get<std::vector<Json>>();
  return {*found};
}

// Reads the normalizer and the pre-tokenizer. Returns an empty string if SentencePiece does all of it itself,
// else the reason why the file cannot be converted.
std::string read_normalizer(const Json& root, PieceModel& out) {
  bool prefix = false;
  for (const Json& step : steps_of(root, "normalizer", "normalizers")) {
    const std::string type = text_at(step, "type");
    if (type == "Precompiled") {
      auto bytes = base64_decoded(text_at(step, "precompiled_charsmap"));
      if (!bytes) return "precompiled_charsmap is not in base 64";
      out.charsmap = std::move(*bytes);
    } else if (type == "Prepend" && text_at(step, "prepend") == kWordBegin) {
      prefix = true;
    } else if (type == "Replace") {
      const Json& pattern = step.at("pattern");
      const bool spaces = text_at(pattern, "String") == " " || text_at(pattern, "Regex") == " {2,}";
      const std::string content = text_at(step, "content");
      if (!spaces || (content != kWordBegin && content != " "))
        return "the normalizer replaces " + pattern.dump();
    } else if (type != "Strip" || step.value("strip_left", true)) {
      return "the normalizer " + type;
    }
  }
  for (const Json& step : steps_of(root, "pre_tokenizer", "pretokenizers")) {
    if (text_at(step, "type") != "Metaspace" || text_at(step, "replacement") != kWordBegin)
      return "the pre-tokenizer " + text_at(step, "type");
    const std::string scheme = text_at(step, "prepend_scheme");
    prefix = prefix || (scheme.empty() ? step.value("add_prefix_space", true) : scheme != "never");
  }
  out.add_dummy_prefix = prefix;
  return "";
}

// Reads a BPE model. Its tokens must be numbered in the order of their merges.
std::string read_bpe(const Json& model, PieceModel& out) {
  out.algorithm = PieceAlgorithm::bpe;
  out.byte_fallback = model.value("byte_fallback", false);
  const Json& vocabulary = model.at("vocab");
  out.pieces.resize(vocabulary.size());
  std::unordered_map<std::string, std::size_t> numbers;
  for (const auto& [text, number] : vocabulary.items()) {
    const auto at = number.get<std::size_t>();
    if (at >= out.pieces.size() || !out.pieces[at].text.empty() || text.empty())
      return fmt::format("the numbers of its vocabulary are not 0 to {}", out.pieces.size() - 1);
    out.pieces[at] = {text, -static_cast<float>(at), PieceKind::normal};
    numbers[text] = at;
  }
  std::size_t last = 0;
  const Json& merges = model.at("merges");
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const Json& merge = merges.at(i);
    std::string whole;
    if (merge.is_string()) {  // "a b", the format of older files
      whole = merge.get<std::string>();
      const std::size_t space = whole.find(' ');
      if (space == std::string::npos || space == 0 || space + 1 == whole.size()) {
        return fmt::format("merge {} of model.merges is {}, expected two tokens with a space between them", i,
                           merge.dump());
      }
      whole.erase(space, 1);
    } else {
      whole = merge.at(0).get<std::string>() + merge.at(1).get<std::string>();
    }
    const auto found = numbers.find(whole);
    if (found == numbers.end()) return "a merge makes " + Json(whole).dump() + ", which is not a token";
    if (found->second < last) return "its merges are not in the order of the vocabulary";
    last = found->second;
  }
  return "";
}

std::string read_unigram(const Json& model, PieceModel& out) {
  out.algorithm = PieceAlgorithm::unigram;
  out.byte_fallback = model.value("byte_fallback", false);
  for (const Json& piece : model.at("vocab"))
    out.pieces.push_back({piece.at(0).get<std::string>(), piece.at(1).get<float>(), PieceKind::normal});
  const auto unknown = model.at("unk_id").get<std::size_t>();
  if (unknown >= out.pieces.size()) return "unk_id is not a token";
  out.pieces[unknown].kind = PieceKind::unknown;
  return "";
}

std::string read_kinds(const Json& root, PieceModel& out) {
  const std::string unknown = text_at(root.at("model"), "unk_token");
  for (TokenPiece& piece : out.pieces) {
    if (piece.text == unknown) piece.kind = PieceKind::unknown;
    const bool byte = piece.text.size() == 6 && piece.text.starts_with("<0x") && piece.text.back() == '>';
    if (out.byte_fallback && byte) piece.kind = PieceKind::byte;
  }
  const auto bytes = std::ranges::count(out.pieces, PieceKind::byte, &TokenPiece::kind);
  if (bytes == 0) out.byte_fallback = false;  // transformers writes true for every NeMo model
  if (bytes != 0 && bytes != 256) return fmt::format("byte_fallback with {} of 256 bytes", bytes);
  if (const auto added = root.find("added_tokens"); added != root.end()) {
    for (const Json& token : *added) {
      const auto number = token.at("id").get<std::size_t>();
      if (number >= out.pieces.size()) continue;
      TokenPiece& piece = out.pieces[number];
      if (piece.text != text_at(token, "content"))
        return fmt::format("added token {} differs from the token in the vocabulary", number);
      if (piece.kind == PieceKind::normal)
        piece.kind = token.value("special", false) ? PieceKind::control : PieceKind::user_defined;
    }
  }
  if (std::ranges::count(out.pieces, PieceKind::unknown, &TokenPiece::kind) != 1)
    return "exactly one token must be the unknown token";
  return "";
}

std::string read_all(const Json& root, PieceModel& out) {
  const Json& model = root.at("model");
  const std::string type = text_at(model, "type");
  if (type != "BPE" && type != "Unigram") return "the model " + type;
  std::string why = type == "BPE" ? read_bpe(model, out) : read_unigram(model, out);
  if (why.empty() && out.pieces.empty()) why = "its vocabulary is empty";
  if (why.empty()) why = read_kinds(root, out);
  if (why.empty()) why = read_normalizer(root, out);
  return why;
}

// Returns the merges as transformers derives them: every split of a token into two tokens, those with the
// highest score first.
Json merges_of(const PieceModel& model) {
  std::unordered_map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) numbers.emplace(model.pieces[i].text, i);
  struct Merge {
    std::string_view left, right;
    float score;
    std::size_t piece;
  };
  std::vector<Merge> merges;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const TokenPiece& piece = model.pieces[i];
    if (piece.kind != PieceKind::normal) continue;
    const std::string_view text = piece.text;
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      if (numbers.contains(text.substr(0, cut)) && numbers.contains(text.substr(cut)))
        merges.push_back({text.substr(0, cut), text.substr(cut), piece.score, i});
    }
  }
  std::ranges::stable_sort(merges, [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, a.piece) < std::tuple(-b.score, b.piece);
  });
  Json out = Json::array();
  for (const Merge& merge : merges) out.push_back({merge.left, merge.right});
  return out;
}

Json model_json(const PieceModel& model, std::size_t unknown) {
  if (model.algorithm == PieceAlgorithm::unigram) {
    Json vocabulary = Json::array();
    for (const TokenPiece& piece : model.pieces) vocabulary.push_back({piece.text, piece.score});
    return {{"type", "Unigram"},
            {"unk_id", unknown},
            {"vocab", vocabulary},
            {"byte_fallback", model.byte_fallback}};
  }
  Json vocabulary = Json::object();
  for (std::size_t i = 0; i < model.pieces.size(); ++i) vocabulary[model.pieces[i].text] = i;
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", model.pieces[unknown].text},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", model.byte_fallback},
          {"ignore_merges", false},
          {"vocab", vocabulary},
          {"merges", merges_of(model)}};
}

Json added_json(std::size_t id, const std::string& text, bool special) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

}  // namespace

Result<PieceModel> read_tokenizer_json(std::string_view text, const std::string& name) {
  PieceModel out;
  if (const std::size_t depth = json_depth(text); depth > kDeepestJson) {
    return invalid_error("{}: it is not a tokenizer.json: its values are nested {} deep, expected at most {}",
                         name, depth, kDeepestJson);
  }
  try {
    const std::string why = read_all(Json::parse(text), out);
    if (!why.empty()) return refused(name, why);
  } catch (const nlohmann::json::exception& error) {
    return Status::invalid(name + ": it is not a tokenizer.json: " + error.what());
  }
  return out;
}

Result<std::string> write_tokenizer_json(const PieceModel& model, const std::string& pad) {
  if (model.algorithm != PieceAlgorithm::bpe && model.algorithm != PieceAlgorithm::unigram)
    return Status::unsupported(
        "a tokenizer of words or characters cannot be a tokenizer.json: train one of the kind bpe or "
        "unigram");
  const auto found = std::ranges::find(model.pieces, PieceKind::unknown, &TokenPiece::kind);
  const auto unknown = static_cast<std::size_t>(found - model.pieces.begin());
  if (found == model.pieces.end()) return Status::invalid("the tokenizer has no token for the unknown");
  Json added = Json::array();
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const TokenPiece& piece = model.pieces[i];
    const bool special = piece.kind == PieceKind::control || piece.kind == PieceKind::unknown;
    if (special || piece.kind == PieceKind::user_defined) added.push_back(added_json(i, piece.text, special));
  }
  added.push_back(added_json(model.pieces.size(), pad, true));
  Json normalizers = Json::array();
  if (!model.charsmap.empty())
    normalizers.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", base64_encoded(model.charsmap)}});
  if (model.remove_extra_whitespaces) {
    normalizers.push_back({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}});
    normalizers.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", kWordBegin}});
  }
  const Json metaspace = {{"type", "Metaspace"},
                          {"replacement", kWordBegin},
                          {"prepend_scheme", model.add_dummy_prefix ? "always" : "never"},
                          {"split", true}};
  Json decoder = metaspace;
  if (model.byte_fallback)
    decoder = {{"type", "Sequence"}, {"decoders", Json::array({{{"type", "ByteFallback"}}, metaspace})}};
  const Json root = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
                     {"pre_tokenizer", metaspace},
                     {"post_processor", nullptr},
                     {"decoder", decoder},
                     {"model", model_json(model, unknown)}};
  return root.dump(2) + '\n';
}

}  // namespace octavo_train
