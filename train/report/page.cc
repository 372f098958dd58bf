// SPDX-License-Identifier: MIT
#include "train/report/page.h"

#include "train/base/base64.h"
#include "train/base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLongList = 40;

// The characters that HTML interprets, and the texts that stand for them.
using Entity = std::pair<char, std::string_view>;
constexpr std::array<Entity, 5> kEntities{
    {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}}};

// Returns the source of a script for a Content-Security-Policy: 'sha256-…', with the hash in base64.
std::string script_source(const Asset& script) {
  std::string hash;
  for (std::size_t i = 0; i < script.sha256.size(); i += 2)
    hash += static_cast<char>(parse_number<unsigned>(script.sha256.substr(i, 2), 16).value_or(0));
  return fmt::format("'sha256-{}'", base64_encoded(hash));
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
    if (const auto* const found = std::ranges::find(kEntities, c, &Entity::first); found != kEntities.end())
      out += found->second;
    else if (c == 0x7f)
      out += "\xe2\x90\xa1";
    else if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
      out += std::string("\xe2\x90") + static_cast<char>(0x80 + c);
    else
      out += c;
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

std::string plan_page(const nlohmann::ordered_json& data) {
  const bool titled = data.is_object() && data.contains("title") && data["title"].is_string();
  return html_page(titled ? data["title"].get<std::string>() : "A plan", data, {&plan_sums_js, &plan_js});
}

}  // namespace octavo_train
