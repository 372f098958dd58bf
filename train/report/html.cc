// SPDX-License-Identifier: MIT
#include "train/report/html.h"

#include "train/base/utf8.h"
#include "train/report/assets.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace octavo_train {
namespace {

std::string cell_html(std::string_view tag, std::string_view attributes, const Cell& cell) {
  std::string out = "<" + std::string(tag) + std::string(attributes);
  if (!cell.style.empty()) out += " class=\"" + cell.style + "\"";
  out += ">" + (cell.html.empty() ? escaped(cell.text) : cell.html);
  if (!cell.note.empty()) out += " <small>" + escaped(cell.note) + "</small>";
  return out + "</" + std::string(tag) + ">";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto c = static_cast<unsigned char>(text.front());
    if (length == 0)
      out += "\xef\xbf\xbd";
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else if (c == 0x7f)
      out += "\xe2\x90\xa1";
    else if (c < 0x20 && c != '\n' && c != '\t')
      out += std::string("\xe2\x90") + static_cast<char>(0x80 + c);
    else
      out += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string json_for_script(std::string json) {
  // In JSON these characters occur only in strings, where the escape means the same.
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<')
      out += "\\u003c";
    else if (c == '>')
      out += "\\u003e";
    else if (c == '&')
      out += "\\u0026";
    else
      out += c;
  }
  return out;
}

std::string HtmlTable::html() const {
  std::string out = "<div class=\"scroll\"><table class=\"" + style_ + "\">\n";
  if (!head_.empty()) {
    out += "<thead><tr>";
    for (const Cell& cell : head_) out += cell_html("th", " scope=\"col\"", cell);
    out += "</tr></thead>\n";
  }
  out += "<tbody>\n";
  for (const auto& row : rows_) {
    out += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      out += i == 0 ? cell_html("th", " scope=\"row\"", row[i]) : cell_html("td", "", row[i]);
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string element(std::string_view tag, std::string_view style, std::string_view inside) {
  std::string out = "<" + std::string(tag);
  if (!style.empty()) out += " class=\"" + std::string(style) + "\"";
  return out + ">" + std::string(inside) + "</" + std::string(tag) + ">";
}

std::string element_of(std::string_view tag, std::string_view style, std::string_view text) {
  return element(tag, style, escaped(text));
}

// Converts the hexadecimal digits of the hash to base64.
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

std::string page_head(std::string_view title, std::string_view scripts, std::string_view style) {
  // Escaping prevents texts from runs and configs from being executed. If it ever fails, the policy still
  // allows only the page's own scripts and forbids every request.
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'; "
         "script-src " +
         (scripts.empty() ? "'none'" : std::string(scripts)) +
         "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" "
         "content=\"no-referrer\">\n" +
         element_of("title", "", title) + "\n<style>\n" + std::string(page_css.text) + std::string(style) +
         "</style>\n</head>\n";
}

std::string page_end(std::string json, std::initializer_list<const Asset*> scripts) {
  std::string out =
      "<script type=\"application/json\" id=\"data\">" + json_for_script(std::move(json)) + "</script>\n";
  for (const Asset* script : scripts) out += "<script>" + std::string(script->text) + "</script>\n";
  return out + "</body>\n</html>\n";
}

std::string section(std::string_view id, std::string_view heading, std::string_view inside) {
  if (inside.empty()) return {};
  return "<section id=\"" + std::string(id) + "\">\n" + element_of("h2", "", heading) + "\n" +
         std::string(inside) + "</section>\n";
}

}  // namespace octavo_train
