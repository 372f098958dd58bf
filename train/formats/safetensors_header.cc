// Parses the JSON header of a safetensors file event by event (SAX). An unexpected event ends the parse
// immediately, so that neither depth nor size of hostile JSON costs anything. See parse_header() in
// safetensors_format.h.
// SPDX-License-Identifier: MIT
#include "train/formats/safetensors_format.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <utility>

namespace octavo_train {
namespace {

using Json = nlohmann::json;

Status not_json(std::size_t position) {
  return Status::invalid("header byte " + std::to_string(position) +
                         ": not JSON; the file is torn or of another format");
}

class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  SafetensorsHeader header;
  std::string error;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a fraction"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) return unexpected("a number");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return fail(what() + std::to_string(value) + ", expected a number below 2^63");
    }
    if (place_ == Place::shape) {
      entry().shape.push_back(static_cast<std::int64_t>(value));
    } else if (++offsets_ <= 2) {
      (offsets_ == 1 ? entry().begin : entry().end) = value;
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      const bool fresh = header.metadata.emplace(key_, std::move(value)).second;
      return fresh || fail(what() + "given twice");
    }
    if (place_ != Place::tensor || key_ != "dtype") return unexpected("a text");
    entry().dtype = std::move(value);
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::top;
    } else if (place_ == Place::top && key_ == kMetadata) {
      if (std::exchange(has_metadata_, true)) return fail(what() + "given twice");
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      header.entries.push_back({key_, {}, {}, 0, 0});
      fields_ = 0;
      place_ = Place::tensor;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = std::move(value);
    if (place_ != Place::tensor) return true;
    const unsigned field = key_ == "dtype" ? 1 : key_ == "shape" ? 2 : key_ == "data_offsets" ? 4 : 0;
    if (field == 0) return fail(what() + "expected dtype, shape and data_offsets alone");
    if ((fields_ & field) != 0) return fail(what() + "given twice");
    fields_ |= field;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor && fields_ != 7) {
      return fail("tensor " + quote_name(entry().name) + ": expected dtype, shape and data_offsets");
    }
    place_ = place_ == Place::top ? Place::end : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") return unexpected("a list");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) {
      return fail(what() + std::to_string(offsets_) + " numbers, expected two");
    }
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return fail(not_json(position).message());
  }

 private:
  enum class Place { start, top, metadata, tensor, shape, offsets, end };

  HeaderEntry& entry() { return header.entries.back(); }

  // Returns the start of an error message: the part of the header that is wrong.
  std::string what() {
    switch (place_) {
      case Place::start:
      case Place::end:
        return "header: ";
      case Place::top:
        return quote_name(key_) + ": ";
      case Place::metadata:
        return std::string(kMetadata) + ": " + quote_name(key_) + ": ";
      case Place::tensor:
      case Place::shape:
      case Place::offsets:
        break;
    }
    return "tensor " + quote_name(entry().name) + ": " + quote_name(key_) + ": ";
  }

  std::string_view wanted() const {
    switch (place_) {
      case Place::shape:
      case Place::offsets:
        return "numbers of 0 or more";
      case Place::metadata:
        return "a text";
      case Place::tensor:
        return key_ == "dtype" ? "a text" : "a list";
      case Place::start:
      case Place::top:
      case Place::end:
        break;
    }
    return "an object";
  }

  bool fail(std::string message) {
    error = std::move(message);
    return false;
  }
  bool unexpected(std::string_view given) {
    return fail(what() + std::string(given) + ", expected " + std::string(wanted()));
  }

  Place place_ = Place::start;
  std::string key_;
  unsigned fields_ = 0;  // fields of the current tensor: 1 dtype, 2 shape, 4 data_offsets
  std::uint64_t offsets_ = 0;
  bool has_metadata_ = false;
};

}  // namespace

Result<SafetensorsHeader> parse_header(std::string_view text) {
  // The JSON library interprets a zero byte as the end of the text and would ignore the rest.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) return not_json(zero + 1);
  HeaderHandler handler;
  if (!Json::sax_parse(text.begin(), text.end(), &handler)) return Status::invalid(handler.error);
  return std::move(handler.header);
}

}  // namespace octavo_train
