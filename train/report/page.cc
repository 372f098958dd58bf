// SPDX-License-Identifier: MIT
#include "train/report/page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLongList = 40;

// Returns the source of a script for a Content-Security-Policy: 'sha256-…', with the hash in base64.
std::string script_source(const Asset& script) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out = "'sha256-";
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : script.sha256) {
    bits = (bits << 4) | static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    for (held += 4; held >= 6; held -= 6) out += kDigits[(bits >> (held - 6)) & 63];
  }
  if (held > 0) out += kDigits[(bits << (6 - held)) & 63];  // 256 bits leave four; '=' is the padding
  return out + "='";
}

std::string value_text(const Json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void add_lines(std::string& out, const Json& value, const std::string& begin, std::size_t depth) {
  out += begin;
  if (!value.is_structured()) {
    out += " " + value_text(value) + "\n";
  } else if (value.is_array() && std::ranges::none_of(value, &Json::is_structured)) {
    if (value.size() > kLongList) {
      out += fmt::format(" {} values", value.size());
    } else {
      for (const Json& item : value) out += (&item == &value.front() ? " " : ", ") + value_text(item);
    }
    out += '\n';
  } else {
    out += '\n';
    const std::string indent(2 * depth, ' ');
    for (const auto& [name, item] : value.items())
      add_lines(out, item, indent + (value.is_array() ? "-" : name + ":"), depth + 1);
  }
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  const std::string utf8 = Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
  for (const char c : utf8) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case 0x7f:
        out += "\xe2\x90\xa1";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
          out += std::string("\xe2\x90") + static_cast<char>(0x80 + c);
        else
          out += c;
    }
  }
  return out;
}

std::string json_for_script(const Json& data) {
  std::string out;
  // In JSON these characters occur only in strings, where the escape means the same.
  for (const char c : data.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    if (c == '<' || c == '>' || c == '&')
      out += fmt::format("\\u{:04x}", c);
    else
      out += c;
  }
  return out;
}

std::string plain_text(const Json& data) {
  std::string out;
  add_lines(out, data, "", 0);
  return out;
}

std::string html_page(const std::string& title, const Json& data,
                      std::initializer_list<const Asset*> scripts) {
  std::vector<const Asset*> all = {&page_js};
  all.insert(all.end(), scripts);
  // Escaping prevents texts from runs and configs from being executed. If it ever fails, the policy still
  // allows only the page's own scripts and forbids every request.
  std::string sources, elements;
  for (const Asset* script : all) {
    sources += " " + script_source(*script);
    elements += fmt::format("<script>{}</script>\n", script->text);
  }
  return fmt::format(fmt::runtime(page_html.text), fmt::arg("title", escaped(title + " · Octavo")),
                     fmt::arg("sources", sources), fmt::arg("style", page_css.text),
                     fmt::arg("text", escaped(plain_text(data))), fmt::arg("data", json_for_script(data)),
                     fmt::arg("scripts", elements));
}

}  // namespace octavo_train
