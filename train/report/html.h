// Builds HTML. Texts are escaped here; no other code writes a text to the page.
// SPDX-License-Identifier: MIT
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

struct Asset;

// Escapes a text for the inside of an element or of a quoted attribute. Control characters, which HTML cannot
// hold, become their pictures (␀ and so on); bytes that are not UTF-8 become U+FFFD.
std::string escaped(std::string_view text);

// Escapes a JSON text for a <script> element of any type.
std::string json_for_script(std::string json);

struct Cell {
  std::string text;
  std::string note = {};   // smaller, after the text
  std::string style = {};  // names of classes: "num", "best", "differs", "code"
  std::string html = {};   // instead of the text: HTML, with texts escaped
};

class HtmlTable {
 public:
  explicit HtmlTable(std::string style = {}) : style_(std::move(style)) {}
  void head(std::vector<Cell> cells) { head_ = std::move(cells); }
  void row(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }  // the first cell names the row
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  [[nodiscard]] std::string html() const;

 private:
  std::string style_;
  std::vector<Cell> head_;
  std::vector<std::vector<Cell>> rows_;
};

// Returns <tag class="style">inside</tag>. `inside` is HTML; element_of() takes a text and escapes it.
std::string element(std::string_view tag, std::string_view style, std::string_view inside);
std::string element_of(std::string_view tag, std::string_view style, std::string_view text);

// Returns the source of a script for a Content-Security-Policy: 'sha256-…' in base64.
std::string script_source(const Asset& script);

// Returns the page up to </head>, with the style of all pages and `style`. `scripts` is the list of sources
// of the scripts that the page may run, for its Content-Security-Policy; empty: none.
std::string page_head(std::string_view title, std::string_view scripts, std::string_view style = {});

// Returns the page after </main>: a JSON text that scripts find in #data, and the scripts.
std::string page_end(std::string json, std::initializer_list<const Asset*> scripts);

// Returns a section with its heading, or an empty text if `inside` is empty.
std::string section(std::string_view id, std::string_view heading, std::string_view inside);

}  // namespace octavo_train
