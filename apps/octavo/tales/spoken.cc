// SPDX-License-Identifier: MIT
#include "apps/octavo/tales/spoken.h"

#include "apps/octavo/tales/grammar.h"
#include "train/data/mix.h"

#include <algorithm>

namespace octavo::tales {

// A choice in brackets is uniform: a model needs examples of every word.
const std::string_view kSpokenSentences = R"(
= spoken
the <s_trait> <s_beast> <s_did> the <s_look> <s_object>
the <s_person> <s_did> the <s_trait> <s_person>
<s_number> <s_beasts> went <s_manner> to the <s_place>
bring the <s_look> <s_object> to the <s_place>
the <s_person> bought <s_number> <s_objects> on <s_day>
there is some <s_food> <s_beside> the <s_place>
on <s_day> the <s_beast> ate the <s_food>
who lost the <s_look> <s_object> <s_beside> the <s_place>
the <s_person> has <s_number> <s_beasts> and <s_number> <s_objects>
please give the <s_food> to the <s_trait> <s_beast>
the <s_look> <s_object> was <s_beside> the <s_place>
the <s_person> <s_did> the <s_objects> <s_manner>

= s_person
[baker|miller|tailor|sailor|teacher|gardener|shepherd|doctor|painter|drummer|postman|cook|weaver|carpenter|blacksmith|innkeeper]
= s_beast
[fox|hare|goose|bear|cat|wolf|otter|donkey|squirrel|sheep|duck|pony|hedgehog|turtle|swan|mouse]
= s_beasts
[foxes|hares|geese|bears|cats|wolves|otters|donkeys|squirrels|sheep|ducks|ponies|hedgehogs|turtles|swans|mice]
= s_trait
[clever|patient|stubborn|cheerful|lazy|brave|quiet|gentle|curious|hungry|sleepy|merry|polite|grumpy]
= s_look
[golden|silver|wooden|green|blue|broken|red|empty|yellow|striped|paper|secret|heavy|round]
= s_object
[lantern|book|key|bell|kettle|map|violin|letter|mirror|ladder|basket|candle|umbrella|button|feather|hammer]
= s_objects
[lanterns|books|keys|bells|kettles|maps|violins|letters|mirrors|ladders|baskets|candles|umbrellas|buttons|feathers|hammers]
= s_food
[bread|cheese|honey|soup|apples|onions|porridge|butter|pancakes|cherries|mushrooms|milk]
= s_place
[mill|tower|church|bakery|bridge|market|castle|school|library|harbour|cottage|garden|forest|river|valley|island]
= s_number
[two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty]
= s_day
[monday|tuesday|wednesday|thursday|friday|saturday|sunday]
= s_did
[found|noticed|painted|followed|greeted|visited|helped|thanked|carried|admired|remembered|watched]
= s_manner
[slowly|quietly|carefully|gladly|softly|suddenly|together|again]
= s_beside
[beside|behind|under|near|above]
)";

std::string SentenceMaker::next() {
  ++sentences_;
  Expander sentence(Grammar::tales(), octavo_train::mix(octavo_train::mix(seed_ + octavo_train::kStep) +
                                                        octavo_train::kStep * sentences_));
  std::string out = sentence.expand("<spoken>");
  std::ranges::transform(out, out.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

}  // namespace octavo::tales
