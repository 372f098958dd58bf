// SPDX-License-Identifier: MIT
#include "tales/spoken.h"

#include "tales/grammar.h"
#include "train/data/mix.h"

#include <algorithm>

namespace octavo::tales {

const std::string_view kSpokenSentences = R"(
= spoken
the <trait> <beast> <saw> the <look> <object>
the <person> <met> the <trait> <person>
<number> <beast.2> <went> <beside> the <building>
bring the <look> <object> to the <building>
the <person> bought <number> <object.2> on <day>
there is some <food> <beside> the <building>
on <day> the <beast> ate the <food>
who lost the <look> <object>
the <person> has <number> <beast.2>
please give the <food> to the <beast>
@ <look> <object> was <beside> the <land>
the <land> is <size> and the <building> is <look>

= beside
beside / behind / under / near / above
)";

std::string SentenceMaker::next() {
  ++sentences_;
  Expander sentence(Grammar::tales(),
                    train::mix(train::mix(seed_ + train::kStep) + train::kStep * sentences_));
  std::string out = sentence.expand("<spoken>");
  std::ranges::transform(out, out.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

}  // namespace octavo::tales
