// SPDX-License-Identifier: MIT
#include "train/report/bar.h"

#include "train/report/html.h"
#include "train/base/numbers.h"

namespace octavo_train {
namespace {

// Widths in pixels: the narrowest bar that has labels (page.css hides labels on narrower pages), a character
// of a label, and the margins of a label.
constexpr double kNarrowestBar = 570, kCharacter = 8, kMargin = 12;

bool has_place(const std::string& label, double share) {
  return kNarrowestBar * share >= kCharacter * static_cast<double>(label.size()) + kMargin;
}

}  // namespace

std::string stacked_bar(std::string_view label, std::span<const BarPart> parts, double scale) {
  std::string out = "<svg class=\"bar\" role=\"img\" aria-label=\"" + escaped(label) + "\">";
  std::string labels;
  double at = 0;
  for (const BarPart& part : parts) {
    if (!(part.bytes > 0)) continue;
    const std::string text = part.name + " " + bytes_text(part.bytes);
    out += "<rect class=\"" + part.style + "\" x=\"" + fixed(at / scale * 100, 3) + "%\" y=\"0\" width=\"" +
           fixed(part.bytes / scale * 100, 3) + "%\" height=\"100%\">" +
           element_of("title", "", part.name + ": " + bytes_text(part.bytes)) + "</rect>";
    if (has_place(text, part.bytes / scale)) {
      labels += "<text x=\"" + fixed((at + part.bytes / 2) / scale * 100, 3) + "%\" y=\"50%\">" +
                escaped(text) + "</text>";
    }
    at += part.bytes;
  }
  return out + labels + "</svg>";
}

}  // namespace octavo_train
