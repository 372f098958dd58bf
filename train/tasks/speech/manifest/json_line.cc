// SPDX-License-Identifier: MIT
#include "train/tasks/speech/manifest/json_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::size_t kDeepest = 64;  // nesting depth of objects and lists
constexpr std::size_t kShown = 24;    // bytes of a value in an error message

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  const auto follows = [&](std::size_t i) { return (at(i) & 0xC0U) == 0x80; };
  const unsigned first = at(0);
  const unsigned second = at(1);
  if (first < 0x80) return text.empty() ? 0 : 1;
  if (first < 0xC2 || first > 0xF4 || !follows(1)) return 0;
  if (first < 0xE0) return 2;
  if (!follows(2)) return 0;
  if (first < 0xF0) {  // overlong encodings and surrogates are invalid
    return (first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ? 0 : 3;
  }
  if (!follows(3)) return 0;
  return (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90) ? 0 : 4;
}

void append_utf8(std::uint32_t point, std::string& out) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) return put(point);
  if (point < 0x800) {
    put(0xC0 | (point >> 6));
  } else if (point < 0x10000) {
    put(0xE0 | (point >> 12));
    put(0x80 | ((point >> 6) & 0x3F));
  } else {
    put(0xF0 | (point >> 18));
    put(0x80 | ((point >> 12) & 0x3F));
    put(0x80 | ((point >> 6) & 0x3F));
  }
  put(0x80 | (point & 0x3F));
}

bool JsonLine::fail_at(std::size_t byte, std::string reason) {
  wrong_ = byte;
  reason_ = std::move(reason);
  return false;
}

bool JsonLine::fail(std::string reason) { return fail_at(next_, std::move(reason)); }

std::string JsonLine::shown() const {
  if (next_ >= text_.size()) return "the end of the line";
  std::size_t end = next_;
  while (end < text_.size() && end - next_ < kShown) {
    const std::size_t length = utf8_length(text_.substr(end));
    const bool control = static_cast<unsigned char>(text_[end]) < 0x20;
    if (length == 0 || control)
      return end > next_ ? std::string(text_.substr(next_, end - next_)) + "…" : "a byte that is no text";
    if (end > next_ && (text_[end] == ',' || text_[end] == '}' || text_[end] == ']' || text_[end] == ':'))
      return std::string(text_.substr(next_, end - next_));
    end += length;
  }
  return std::string(text_.substr(next_, end - next_)) + (end < text_.size() ? "…" : "");
}

char JsonLine::peek() {
  while (next_ < text_.size() && is_space(text_[next_])) ++next_;
  return next_ < text_.size() ? text_[next_] : '\0';
}

bool JsonLine::ended() { return peek() == '\0' && next_ == text_.size(); }

bool JsonLine::take(char wanted, std::string_view what) {
  if (peek() != wanted || next_ >= text_.size())
    return fail("expected " + std::string(what) + ", got " + shown());
  ++next_;
  return true;
}

bool JsonLine::word(std::string_view wanted) {
  if (!text_.substr(next_).starts_with(wanted)) return false;
  next_ += wanted.size();
  return true;
}

bool JsonLine::null() { return peek() == 'n' && word("null"); }

bool JsonLine::boolean(bool& out) {
  const char first = peek();
  if (first == 't' && word("true")) return out = true;
  if (first == 'f' && word("false")) {
    out = false;
    return true;
  }
  return fail("expected true or false, got " + shown());
}

bool JsonLine::number_text(std::string_view& out) {
  peek();
  const std::size_t begin = next_;
  std::size_t end = begin;
  const auto digits = [&] {
    const std::size_t first = end;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    return end > first;
  };
  const auto has = [&](char c) { return end < text_.size() && text_[end] == c; };
  if (has('-')) ++end;
  const bool zero = has('0');
  const std::size_t whole = end;
  bool good = digits() && !(zero && end - whole > 1);
  if (good && has('.')) {
    ++end;
    good = digits();
  }
  if (good && (has('e') || has('E'))) {
    ++end;
    if (has('+') || has('-')) ++end;
    good = digits();
  }
  if (!good) return fail("expected a number, got " + shown());
  out = text_.substr(begin, end - begin);
  next_ = end;
  return true;
}

bool JsonLine::number(double& out) {
  const char first = peek();
  if (first != '-' && !is_digit(first)) return fail("expected a number, got " + shown());
  const std::size_t begin = next_;
  std::string_view text;
  if (!number_text(text)) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error == std::errc() && std::isfinite(out)) return true;
  return fail_at(begin, std::string(text) + " is out of the range of a number");
}

bool JsonLine::hex(std::uint32_t& out) {
  out = 0;
  const std::string_view digits = text_.substr(next_, 4);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out, 16);
  if (error != std::errc() || digits.size() < 4 || end != digits.data() + 4)
    return fail("expected four hexadecimal digits after \\u");
  next_ += 4;
  return true;
}

// Reads the rest of an escape sequence, after the backslash.
bool JsonLine::escape(std::string& out) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kMeans = "\"\\/\b\f\n\r\t";
  const std::size_t begin = next_ - 1;
  const char name = next_ < text_.size() ? text_[next_] : '\0';
  const std::size_t found = name == '\0' ? std::string_view::npos : kNames.find(name);
  if (found != std::string_view::npos) {
    out += kMeans[found];
    ++next_;
    return true;
  }
  if (name != 'u')
    return fail_at(begin,
                   "a backslash in a string begins one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u; a backslash "
                   "is written \\\\");
  ++next_;
  std::uint32_t point = 0;
  if (!hex(point)) return false;
  if (point >= 0xDC00 && point < 0xE000)
    return fail_at(begin, "the second half of a character without its first");
  if (point >= 0xD800 && point < 0xDC00) {
    std::uint32_t low = 0;
    if (!word("\\u")) return fail_at(begin, "the first half of a character without its second");
    if (!hex(low)) return false;
    if (low < 0xDC00 || low >= 0xE000)
      return fail_at(begin, "the first half of a character without its second");
    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(point, out);
  return true;
}

bool JsonLine::string(std::string& out) {
  out.clear();
  if (peek() != '"') return fail("expected a string in double quotes, got " + shown());
  const std::size_t begin = next_++;
  while (next_ < text_.size()) {
    const std::size_t plain = next_;
    while (next_ < text_.size()) {  // characters that need no escaping or UTF-8 check
      const auto c = static_cast<unsigned char>(text_[next_]);
      if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\') break;
      ++next_;
    }
    out.append(text_.substr(plain, next_ - plain));
    if (next_ >= text_.size()) break;
    const char c = text_[next_];
    if (c == '"') {
      ++next_;
      return true;
    }
    if (c == '\\') {
      ++next_;
      if (!escape(out)) return false;
      continue;
    }
    if (static_cast<unsigned char>(c) < 0x20)
      return fail("a control character in a string; write it as \\n, \\t or \\u00XX");
    const std::size_t length = utf8_length(text_.substr(next_));
    if (length == 0) return fail("the text is not UTF-8");
    out.append(text_.substr(next_, length));
    next_ += length;
  }
  return fail_at(begin, "a string that begins here has no end in this line");
}

bool JsonLine::skip(std::string_view* out) {
  peek();
  const std::size_t begin = next_;
  std::string open;  // the expected closing brackets
  std::string text;
  bool done = false;
  while (!done) {
    const char c = peek();
    bool value = true;
    if (c == '{' || c == '[') {
      if (open.size() == kDeepest)
        return fail("more than " + std::to_string(kDeepest) + " objects and lists in each other");
      ++next_;
      open += c == '{' ? '}' : ']';
      if (peek() != open.back()) {
        value = false;
      } else {
        ++next_;
        open.pop_back();
      }
    } else if (c == '"') {
      if (!string(text)) return false;
    } else if (c == 't' || c == 'f') {
      bool any = false;
      if (!boolean(any)) return false;
    } else if (c == 'n') {
      if (!null()) return fail("expected a value, got " + shown());
    } else if (c == '-' || is_digit(c)) {
      std::string_view any;
      if (!number_text(any)) return false;
    } else {
      return fail("expected a value, got " + shown());
    }
    // After a value, closing brackets or a comma follow.
    while (value && !open.empty()) {
      const char end = peek();
      if (end == ',') {
        ++next_;
        value = false;
      } else if (!take(open.back(), open.back() == '}' ? "a comma or }" : "a comma or ]")) {
        return false;
      } else {
        open.pop_back();
      }
    }
    if (!value && open.back() == '}') {
      if (!string(text) || !take(':', "a colon")) return false;
    }
    done = open.empty();
  }
  if (out != nullptr) *out = text_.substr(begin, next_ - begin);
  return true;
}

}  // namespace octavo_train
