// Expands a grammar; see tales.h. `rule = a / b` defines alternatives, one per line or between " / "; earlier
// ones are chosen more often. Inside an alternative:
//
//   <rule>     an alternative of that rule      [a|b|c]  one of these choices, with equal probability
//   <x=rule>   the same, remembered as <x>      @        a or an, by the letter that follows
//   ~          a new paragraph
//
// <h> is the hero, <f> the friend, <o> the stranger; each has a .kind, a .trait, and the pronoun .he.
// <thing> and <home> stay the same throughout a tale. Every beast and object has a plural in s, and the
// first sound of every word fits its first letter, by which the article is chosen.
// SPDX-License-Identifier: MIT
#include "apps/octavo/tales/tales.h"

#include "train/data/mix.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo::tales {
namespace {

using octavo_train::kGoldenGamma;
using octavo_train::mix;
using Texts = std::vector<std::string_view>;

constexpr std::string_view kGrammar = R"(
he_name = [Al|Ber|Cor|Dun|Ed|Fer|Gar|Har|Jas|Lor|Mar|Nor|Os|Per|Rol|Sim|Tob|Wil][win|bert|rick|mund|ton|fred|ward|ley]
she_name = [A|Be|Cla|Do|E|Flo|Ga|He|Ju|Li|Ma|Ne|O|Pe|Ro|Se|Ti|Vi][lla|rina|netta|mira|linda|rosa|bella|nora]
town = [Alder|Bram|Dun|East|Fen|Grey|Hazel|Iron|Lark|Mill|North|Oak|Pebble|Raven|Salt|Thorn|Willow][wick|ford|mere|bridge|ham|field|gate|combe]
person = baker / miller / weaver / tailor / shepherd / gardener / carpenter / sailor / teacher / potter / piper / cook / painter / doctor / innkeeper
beast = hare / bear / goat / cat / otter / owl / badger / donkey / frog / squirrel / dog / hen / turtle / swan / duck / hedgehog / crow / mole / bee
trait = clever / patient / proud / stubborn / cheerful / lazy / brave / quiet / greedy / gentle / curious / careful / polite / hungry / merry / grumpy
look = golden / silver / wooden / green / blue / old / painted / broken / dusty / red / empty / rusty / heavy / round / little / iron / secret / enormous
object = lantern / book / key / bell / ring / kettle / map / clock / boat / violin / coat / letter / mirror / ladder / basket / drum / spoon / wheel / candle / hat / rope
place = mill / tower / church / inn / forest / river / bakery / bridge / market / valley / castle / school / hill / barn / lake / library / meadow / harbour / island / garden
stuff = gold / straw / wool / stone / silk / iron / salt / flour / glass / ink / paper / wax / clay / amber
day = Monday / Tuesday / Wednesday / Thursday / Friday / Saturday / Sunday
when = in the morning / at noon / at night / before dawn / after supper / in the evening / the next day / on <day> / a week later
where = by the <place> / near the <place> / behind the <place> / beside the <place> / on the road to <town> / between the <place> and the <place>
feeling = happy / sad / tired / afraid / angry / ashamed / glad / puzzled / lonely / cold / surprised / worried / content / jealous / hopeful / amazed
virtue = patience / honesty / kindness / courage / hard work / a good friend / a kind word / practice / trust / silence / a promise
went = walked / ran / went / hurried / rode / wandered / climbed / travelled / crept / marched / danced
made = made / carried / mended / hid / bought / sold / found / lost / borrowed / wanted / opened / wrapped / drew / counted / buried / brought
noun = <look> <object> / <object> / <object> of <stuff>
one = @ <noun> / the <noun> / <number> <object>s / some <food> / a sack of <stuff>
creature = @ <beast> / @ <person> / @ <trait> <person> / <number> <beast>s / the <person> of <town>
act = <went> to the <place> / <made> <one> / [met|followed|greeted|visited|helped|thanked|watched|chased] <creature> / saw <one> <where> / <made> the <object> [slowly|quietly|carefully|gladly|with a sigh|in a hurry] / <went> to <town>
looked for <one> / asked <creature> the way to <town> / gave <one> to <creature> / sat down <where> / ate some <food>
line = <h> <act>. / <h> <act>, and then <h.he> <act>. / <f> <act>. <f.he> was <feeling>. / <when> <h> <act>. / <sky> / <h> and <f> <act> together.
when <h> <act>, <h.he> was <feeling>. / because <h.he> was <feeling>, <h> <act>. / the <h.kind> <act>, but <h.he> was still <feeling>.
<f> <act>, while <h> <act>. / <f>, who was <f.trait>, <act>. / with @ <object> in hand, <h> <act>. / <h> <act>, <act> and <act>.
sky = the [sun|moon|wind|rain|snow|mist] came over the <place>. / it was <day>, and it [rained|snowed|was hot|was cold].
@ <x=beast> sat <where>, and the <x> was <feeling>. / every <x=person> in <home> had @ <y=object>, and every <y> was <look>.
remark = <virtue> is better than <stuff> / there is @ <beast> <where> / I have never seen such @ <noun> / you are as <trait> as @ <beast>
we need <one> and <one> / the <place> of <town> is full of <beast>s / nobody knows who made the <noun>
ask = "where is the <x=noun>?" asked <f>. "the <x> is <where>," said <h>. / "are you <x=feeling>?" asked <f>. "yes, I am as <x> as @ <beast>," said <h>.
"how many <x=beast>s do you see?" asked <h>. <f> counted the <x>s. "<number>," <f.he> said. / "<remark>," said <f>. "<remark>," said <h>.
"is it far to <x=town>?" asked <f>. "<x> is <number> miles from here," said <h>. / "have we any <x=food> left?" asked <f>. "no <x>," answered <h>.
talk = "who are you?" asked the <o.kind>. "I am <h>, @ <h.kind> from <home>," said <h>. / "<remark>," said <o>. "have you seen @ <thing>?" asked <h>.
"my name is <o>," said the <o.kind>. "and mine is <h>," said the <h.kind>. / "what do you know about <x=virtue>?" asked <o>. "<x> is worth more than <stuff>," said <h>.
"what is in that <x=object>?" asked <o>. "there is some <food> in the <x>," said <h>.
title = the <h.kind> and the <thing> / how <h> found the <thing> / <h> and the <thing> / the <h.trait> <h.kind> of <home> / <h> and <f>
tale = <opening>~<wish>~<road>~<meeting>~<trouble>~<rescue>~<ending> / <opening>~<road>~<meeting>~<road>~<trouble>~<road>~<rescue>~<ending>
opening = once upon a time there lived in <home> @ <h.trait> <h.kind> whose name was <h>. <h.he> had @ <noun> and a friend called <f>, @ <f.kind>. <line>
near the <place> of <home> lived <h> the <h.kind>. everybody called <h> <h.trait>. next door lived <f>, @ <f.kind>. <line>
wish = more than anything, <h> wanted @ <thing>. <h.he> thought of it <when> and <when>. <line> <ask>
<when> <h> heard that @ <thing> was hidden <where>. <h.he> was too <feeling> to sleep. <ask> <line>
road = <line> <line> <line> / <line> <ask> / <sky> <line> <line> / for <number> [days|nights|weeks|months] they followed the road to <town>. <line> <ask>
meeting = <when> they met <o>, @ <o.trait> <o.kind>, <where>. <talk> <line> / <where> sat @ <o.kind> named <o>. <o> <act>. <talk> <line>
trouble = but <o> was not as <o.trait> as <o.he> seemed. <when> <o.he> took the <object> and the <food>, and <o.he> <went> to <town>. <line>
<number> <x=beast>s stood in the way. "give us <number> <object>s," said the <x>s. <line> / suddenly @ <noun> fell <where>. <h> was <feeling>. <ask>
rescue = then <h> remembered what <o> had said. <h.he> took <one> and @ <object>, and <h.he> [opened|lifted|kissed|washed|shook] the <thing> [slowly|carefully|with a smile|with great care]. <line>
it was <f> who saved them. <f.he> <act>, and there was the <thing>. "<remark>," said <h>. / at last <h> found the <thing> <where>, under @ <noun>. <line> <ask>
ending = so <h> and <f> came home to <home> with the <thing>. since that day everybody in <home> knows that <virtue> is worth more than <stuff>.
<h> gave the <thing> to <f>, for <h.he> had learned that <virtue> is better than any <thing>. that is the end of the tale.
spoken = the <s_trait> <s_beast> <s_did> the <s_look> <s_object> / the <s_person> <s_did> the <s_trait> <s_person>
<number> <s_beasts> went <s_manner> to the <s_place> / bring the <s_look> <s_object> to the <s_place>
the <s_person> bought <number> <s_object>s on <s_day> / there is some <food> <s_beside> the <s_place>
on <s_day> the <s_beast> ate the <food> / who lost the <s_look> <s_object> <s_beside> the <s_place>
the <s_person> has <number> <s_beasts> and <number> <s_object>s / please give the <food> to the <s_trait> <s_beast>
the <s_look> <s_object> was <s_beside> the <s_place> / the <s_person> <s_did> the <s_object>s <s_manner>
s_person = [baker|miller|tailor|sailor|teacher|gardener|shepherd|doctor|painter|drummer|postman|cook|weaver|carpenter|blacksmith|innkeeper]
s_beast = [fox|hare|goose|bear|cat|wolf|otter|donkey|squirrel|sheep|duck|pony|hedgehog|turtle|swan|mouse]
s_beasts = [foxes|hares|geese|bears|cats|wolves|otters|donkeys|squirrels|sheep|ducks|ponies|hedgehogs|turtles|swans|mice]
s_trait = [clever|patient|stubborn|cheerful|lazy|brave|quiet|gentle|curious|hungry|sleepy|merry|polite|grumpy]
s_look = [golden|silver|wooden|green|blue|broken|red|empty|yellow|striped|paper|secret|heavy|round]
s_object = [lantern|book|key|bell|kettle|map|violin|letter|mirror|ladder|basket|candle|umbrella|button|feather|hammer]
food = [bread|cheese|honey|soup|apples|onions|porridge|butter|pancakes|cherries|mushrooms|milk]
s_place = [mill|tower|church|bakery|bridge|market|castle|school|library|harbour|cottage|garden|forest|river|valley|island]
number = [two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty]
s_day = [monday|tuesday|wednesday|thursday|friday|saturday|sunday]
s_did = [found|noticed|painted|followed|greeted|visited|helped|thanked|carried|admired|remembered|watched]
s_manner = [slowly|quietly|carefully|gladly|softly|suddenly|together|again]
s_beside = [beside|behind|under|near|above]
)";

Texts split(std::string_view text, std::string_view separator) {
  Texts out;
  for (std::size_t end; (end = text.find(separator)) < text.size();
       text.remove_prefix(end + separator.size()))
    out.push_back(text.substr(0, end));
  out.push_back(text);
  return out;
}

const std::map<std::string_view, Texts>& rules() {
  static const std::map<std::string_view, Texts> rules = [] {
    std::map<std::string_view, Texts> out;
    std::string_view name;
    for (std::string_view line : split(kGrammar, "\n")) {
      if (const std::size_t equals = line.find(" = "); equals != std::string_view::npos) {
        name = line.substr(0, equals);
        line.remove_prefix(equals + 3);
      }
      for (const std::string_view each : split(line, " / "))
        if (!each.empty()) out[name].push_back(each);
    }
    return out;
  }();
  return rules;
}

// Expands patterns. The key determines the random choices: the same key and calls give the same text.
class Expander {
 public:
  Expander(std::uint64_t seed, std::uint64_t number)
      : key_(mix(mix(seed + kGoldenGamma) + kGoldenGamma * number)) {}

  std::uint64_t below(std::uint64_t count) { return mix(key_ + kGoldenGamma * ++drawn_) % count; }

  std::string expand(std::string_view pattern) {
    std::string out;
    while (!pattern.empty()) {
      const char c = pattern.front();
      const std::size_t end = c == '<' ? pattern.find('>') : c == '[' ? pattern.find(']') : 0;
      const std::string_view inside = pattern.substr(1, std::max<std::size_t>(end, 1) - 1);
      const Texts choices = split(inside, "|");
      out += c == '<'   ? value_of(inside)
             : c == '[' ? expand(choices[below(choices.size())])
                        : std::string(1, c);
      pattern.remove_prefix(end + 1);
    }
    return out;
  }

  // Stores the expanded pattern as <name>.
  void remember(std::string_view name, std::string_view pattern) {
    memory_.insert_or_assign(std::string(name), expand(pattern));
  }

 private:
  // Returns the value of <name>, <rule>, or <name=rule>, which also stores the name.
  std::string value_of(std::string_view reference) {
    if (const auto known = memory_.find(reference); known != memory_.end()) return known->second;
    const std::size_t equals = reference.find('=');
    const Texts& all = rules().at(reference.substr(equals == std::string_view::npos ? 0 : equals + 1));
    // The smaller of two draws makes earlier alternatives more frequent, like frequent words of a language.
    const std::string_view chosen = all[std::min(below(all.size()), below(all.size()))];
    if (equals == std::string_view::npos) return expand(chosen);
    remember(reference.substr(0, equals), chosen);
    return memory_.find(reference.substr(0, equals))->second;
  }

  std::uint64_t key_, drawn_ = 0;
  std::map<std::string, std::string, std::less<>> memory_;
};

constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
constexpr char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

// Replaces the marks for articles and paragraphs, and begins sentences and quotes with capitals.
std::string finish(const std::string& draft) {
  std::string out;
  bool capital = true;  // capitalize the next letter
  for (std::size_t i = 0; i < draft.size(); ++i) {
    const char c = draft[i], before = i > 0 ? draft[i - 1] : ' ';
    if (c == '~') {
      out += "\n\n";
    } else if (c == '@') {
      out += std::exchange(capital, false) ? 'A' : 'a';
      const char next =
          *std::find_if(draft.begin() + static_cast<std::ptrdiff_t>(i), draft.end() - 1, is_letter);
      if (std::string_view("AEIOU").find(upper(next)) != std::string_view::npos) out += 'n';
    } else {
      out += is_letter(c) && std::exchange(capital, false) ? upper(c) : c;
    }
    // `?" ` ends no sentence, because `he asked` may follow it.
    const bool ends = c == '.' || c == '!' || c == '?' || (c == '"' && before == '.');
    const bool opens = c == '"' && (before == ' ' || before == '~');
    if (c == '~' || opens || (ends && draft[std::min(i + 1, draft.size() - 1)] == ' ')) capital = true;
  }
  return out;
}

}  // namespace

std::string make_tale(std::uint64_t seed, std::uint64_t number) {
  Expander tale(seed, number);
  for (const std::string role : {"h", "f", "o"}) {  // the ending of a name fits the pronoun
    const bool she = tale.below(2) == 0;
    tale.remember(role, she ? "<she_name>" : "<he_name>");
    tale.remember(role + ".kind", "[<person>|<beast>]");
    tale.remember(role + ".trait", "<trait>");
    tale.remember(role + ".he", she ? "she" : "he");
  }
  tale.remember("home", "<town>");
  tale.remember("thing", "<noun>");
  return "Tale " + std::to_string(number) + ": " + finish(tale.expand("<title>~<tale>")) + "\n\n";
}

std::string make_text(std::int64_t bytes, std::uint64_t seed) {
  const auto size = static_cast<std::size_t>(bytes);
  std::string out;
  for (std::uint64_t number = 1; out.size() < size; ++number) out += make_tale(seed, number);
  out.resize(size);
  return out;
}

std::string make_sentence(std::uint64_t seed, std::uint64_t number) {
  return Expander(seed, number).expand("<spoken>");
}

}  // namespace octavo::tales
