// The rules that tales.cc expands. `rule = a / b` defines alternatives, one per line or between " / ";
// earlier ones are chosen more often. Inside an alternative:
//
//   <rule>     an alternative of that rule      [a|b|c]  one of these choices, with equal probability
//   <x=rule>   the same, remembered as <x>      @        a or an, by the letter that follows
//   ~          a new paragraph
//
// <h> is the hero, <f> the friend, <o> the stranger; each has a .kind, a .trait, and the pronouns .he, .him
// and .his. <thing> and <home> stay the same throughout a tale. Every beast and object has a plural in s, and
// the first sound of every word fits its first letter, by which the article is chosen.
// SPDX-License-Identifier: MIT
#include "apps/octavo/tales/tales.h"

namespace octavo::tales {

const std::string_view kGrammar = R"(
he_name = [Al|Ber|Cor|Dun|Ed|Fer|Gar|Har|Jas|Lor|Mar|Nor|Os|Per|Rol|Sim|Tob|Wil][win|bert|rick|mund|ton|fred|ward|ley]
she_name = [A|Be|Cla|Do|E|Flo|Ga|He|Ju|Li|Ma|Ne|O|Pe|Ro|Se|Ti|Vi][lla|rina|netta|mira|linda|rosa|bella|nora]
town = [Alder|Bram|Dun|East|Fen|Grey|Hazel|Iron|Lark|Mill|North|Oak|Pebble|Raven|Salt|Thorn|Willow][wick|ford|mere|bridge|ham|field|gate|combe]
person = baker / miller / weaver / tailor / shepherd / gardener / carpenter / sailor / teacher / potter / piper
cook / painter / doctor / innkeeper / beekeeper / printer / fisher / clockmaker / cobbler / drummer / postman / juggler
beast = hare / bear / goat / cat / otter / owl / badger / donkey / frog / squirrel / dog / hen / turtle / swan / duck
hedgehog / crow / heron / sparrow / mole / magpie / rat / bee
trait = clever / patient / proud / stubborn / cheerful / lazy / brave / quiet / greedy / gentle / curious / careful
forgetful / polite / hungry / merry / grumpy / idle / shy / loyal / restless / cunning / kindly / nimble / sleepy
look = golden / silver / wooden / green / blue / old / painted / broken / dusty / red / empty / rusty / heavy / round
little / iron / secret / enormous / white / black / striped / borrowed / polished / yellow / leather / forgotten / tall
object = lantern / book / key / bell / ring / kettle / map / clock / boat / violin / coat / letter / mirror / ladder
basket / drum / spoon / wheel / candle / umbrella / feather / hammer / hat / cup / flute / chair / button / needle / rope
barrel / cloak / inkpot / coin
food = bread / cheese / honey / soup / cake / porridge / butter / milk / jam / onions / apples / mushrooms / pears / plums
nuts / pancakes / cherries / beans
place = mill / tower / church / inn / forest / river / bakery / bridge / market / valley / castle / school / hill
barn / lake / library / meadow / harbour / island / garden / cottage / marsh / mountain / windmill / stable / village
shore / orchard / workshop / chapel / canal
stuff = gold / straw / wool / stone / silk / iron / salt / flour / glass / ink / paper / wax / clay / amber
number = two / three / four / five / six / seven / eight / nine / ten / eleven / twelve / twenty
span = days / nights / weeks / winters / years / months
day = Monday / Tuesday / Wednesday / Thursday / Friday / Saturday / Sunday
when = in the morning / at noon / at night / before dawn / after supper / in the evening / the next day / on <day>
one day in [March|May|June|August|October] / a week later / when the bells rang
where = by the <place> / near the <place> / behind the <place> / beside the <place> / on the road to <town> / in front of the <place>
between the <place> and the <place>
manner = slowly / quietly / carefully / gladly / suddenly / without a word / with a sigh / in a hurry / with a smile
softly / with great care / all alone / by mistake / with both hands
feeling = happy / sad / tired / afraid / angry / ashamed / glad / puzzled / lonely / cold / surprised / worried
content / jealous / hopeful / amazed
virtue = patience / honesty / kindness / courage / hard work / a good friend / a kind word / practice / trust
silence / a promise / good humour
went = walked / ran / went / hurried / rode / wandered / climbed / travelled / crept / marched / danced
made = made / carried / mended / hid / bought / sold / found / lost / borrowed / wanted / opened / wrapped / drew
counted / buried / brought
met = met / followed / greeted / visited / helped / painted / thanked / watched / woke / invited / chased
held = hid / polished / painted / washed / weighed / mended / dropped / shook / opened / kissed / lifted
noun = <look> <object> / <object> / <object> of <stuff>
one = @ <noun> / the <noun> / <number> <object>s / some <food> / a sack of <stuff>
creature = @ <beast> / @ <person> / @ <trait> <person> / <number> <beast>s / the <person> of <town>

act = <went> to the <place> / <made> <one> / <met> <creature> / saw <one> <where> / <held> the <object> <manner>
<went> to <town> / looked for <one> / asked <creature> the way to <town> / gave <one> to <creature>
sat down <where> / ate some <food>
line = <h> <act>. / <h> <act>, and then <h.he> <act>. / <f> <act>. <f.he> was <feeling>. / <when> <h> <act>.
when <h> <act>, <h.he> was <feeling>. / <sky> / because <h.he> was <feeling>, <h> <act>. / <h> and <f> <act> together.
the <h.kind> <act>, but <h.he> was still <feeling>. / <f> <act>, while <h> <act>. / <f>, who was <f.trait>, <act>.
with @ <object> in <h.his> hand, <h> <act>. / <h> <act>, <act> and <act>.
sky = the [sun|moon|wind|rain|snow|mist] came over the <place>. / it was <day>, and it [rained|snowed|was hot|was cold].
@ <x=beast> sat <where>, and the <x> was <feeling>. / the <place> smelled of <food> and <stuff>.
every <x=person> in <home> had @ <y=object>, and every <y> was <look>.
remark = <virtue> is better than <stuff> / there is @ <beast> <where> / I have never seen such @ <noun>
you are as <trait> as @ <beast> / we need <one> and <one> / the <place> of <town> is full of <beast>s
I would rather have @ <object> than <number> <object>s / nobody knows who made the <noun>
ask = "where is the <x=noun>?" asked <f>. "the <x> is <where>," said <h>.
"are you <x=feeling>, my friend?" asked <f>. "yes, I am as <x> as @ <beast>," said <h>.
"how many <x=beast>s do you see?" asked <h>. <f> counted the <x>s. "<number>," <f.he> said.
"is it far to <x=town>?" asked <f>. "<x> is <number> miles from here," said <h>.
"have we any <x=food> left?" asked <f>. "no <x>, but some <food>," answered <h>.
"<remark>," said <f>. "<remark>," said <h>.
talk = "who are you?" asked the <o.kind>. "I am <h>, @ <h.kind> from <home>," said <h>.
"my name is <o>," said the <o.kind>. "and mine is <h>," said the <h.kind>.
"what do you know about <x=virtue>?" asked <o>. "<x> is worth more than <stuff>," said <h>.
"I will give you @ <noun> for the <food>," said <o>. "no, I am only @ <h.kind> from <home>," said <h>.
"what is in that <x=object>?" asked <o>. "there is some <food> in the <x>," said <h>.
"<remark>," said <o>. "have you seen @ <thing>?" asked <h>.

title = the <h.kind> and the <thing> / how <h> found the <thing> / <h> and the <thing>
the <h.trait> <h.kind> of <home> / the <thing> of <home> / <h> and <f>
tale = <opening>~<wish>~<road>~<meeting>~<trouble>~<rescue>~<ending>
<opening>~<wish>~<road>~<meeting>~<road>~<night>~<trouble>~<rescue>~<ending>
<opening>~<road>~<meeting>~<night>~<rescue>~<ending>
<opening>~<wish>~<meeting>~<road>~<trouble>~<rescue>~<ending>
opening = once upon a time there lived in <home> @ <h.trait> <h.kind> whose name was <h>. <h.he> had @ <noun>, <number> <object>s and a friend called <f>, who was @ <f.kind>. <line>
near the <place> of <home> lived <h> the <h.kind>. everybody called <h.him> <h.trait>. next door lived <f>, @ <f.kind>. <line>
there was once @ <f.kind> named <f>, and <f.his> best friend was <h>, @ <h.kind>. <f> was <f.trait>, and <h> was <h.trait>. <line>
wish = more than anything, <h> wanted @ <thing>. <h.he> thought of it <when> and <when>. <line> <ask>
<when> <h> heard that @ <thing> was hidden <where>. <h.he> was too <feeling> to sleep. <ask> <line>
"if only I had @ <thing>," said <h>. so they said goodbye to <home>, and <f> carried <one>. <line>
road = <line> <line> <line> / <line> <ask> / <sky> <line> <line>
for <number> <span> they followed the road to <town>. <line> <ask>
the road led past the <place>, past the <place> and at last to the <place>. <line> <line>
meeting = <when> they met <o>, @ <o.trait> <o.kind>, <where>. <talk> <line>
<where> sat @ <o.kind>, and <o.his> name was <o>. <o> <act>. <talk> <line>
"stop!" cried a voice. it was <o>, the <o.trait> <o.kind>. <talk> <talk>
night = that night <h> slept <where>. <h.he> dreamed that <number> <x=beast>s <went> to the <place>, and that the <x>s <made> <one>. <line>
when it was dark they lit @ [lantern|candle|fire] and sat <where>. <ask> soon they were both asleep.
trouble = but <o> was not as <o.trait> as <o.he> seemed. <when> <o.he> took the <object>, the <food> and even the <object>, and <o.he> <went> to <town>. <line>
suddenly @ <noun> fell <where>, and <h> could not move. <h.he> was <feeling>. <ask>
<number> <x=beast>s stood in the way. "give us <number> <object>s," said the <x>s. <line>
rescue = then <h> remembered what <o> had said. <h.he> took <one> and @ <object>, and <h.he> <held> the <thing> <manner>. <line>
it was <f> who saved them. <f.he> <act>, and there was the <thing>. "<remark>," said <h>.
<when> <o> came back. "I was wrong about <virtue>," said <o>, and <o.he> gave <h> the <thing>. <line>
at last <h> found the <thing> <where>, under @ <noun>. <line> <ask>
ending = so <h> and <f> came home to <home> with the <thing>. since that day everybody in <home> knows that <virtue> is worth more than <stuff>.
<when> they were home again. <h> put the <thing> <where>, and <f> ate <food>. they were happy for <number> <span>, and perhaps they still are.
<h> gave the <thing> to <f>, for <h.he> had learned that <virtue> is better than any <thing>. that is the end of the tale.

spoken = the <s_trait> <s_beast> <s_did> the <s_look> <s_object> / the <s_person> <s_did> the <s_trait> <s_person>
<s_number> <s_beasts> went <s_manner> to the <s_place> / bring the <s_look> <s_object> to the <s_place>
the <s_person> bought <s_number> <s_objects> on <s_day> / there is some <s_food> <s_beside> the <s_place>
on <s_day> the <s_beast> ate the <s_food> / who lost the <s_look> <s_object> <s_beside> the <s_place>
the <s_person> has <s_number> <s_beasts> and <s_number> <s_objects> / please give the <s_food> to the <s_trait> <s_beast>
the <s_look> <s_object> was <s_beside> the <s_place> / the <s_person> <s_did> the <s_objects> <s_manner>
s_person = [baker|miller|tailor|sailor|teacher|gardener|shepherd|doctor|painter|drummer|postman|cook|weaver|carpenter|blacksmith|innkeeper]
s_beast = [fox|hare|goose|bear|cat|wolf|otter|donkey|squirrel|sheep|duck|pony|hedgehog|turtle|swan|mouse]
s_beasts = [foxes|hares|geese|bears|cats|wolves|otters|donkeys|squirrels|sheep|ducks|ponies|hedgehogs|turtles|swans|mice]
s_trait = [clever|patient|stubborn|cheerful|lazy|brave|quiet|gentle|curious|hungry|sleepy|merry|polite|grumpy]
s_look = [golden|silver|wooden|green|blue|broken|red|empty|yellow|striped|paper|secret|heavy|round]
s_object = [lantern|book|key|bell|kettle|map|violin|letter|mirror|ladder|basket|candle|umbrella|button|feather|hammer]
s_objects = [lanterns|books|keys|bells|kettles|maps|violins|letters|mirrors|ladders|baskets|candles|umbrellas|buttons|feathers|hammers]
s_food = [bread|cheese|honey|soup|apples|onions|porridge|butter|pancakes|cherries|mushrooms|milk]
s_place = [mill|tower|church|bakery|bridge|market|castle|school|library|harbour|cottage|garden|forest|river|valley|island]
s_number = [two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty]
s_day = [monday|tuesday|wednesday|thursday|friday|saturday|sunday]
s_did = [found|noticed|painted|followed|greeted|visited|helped|thanked|carried|admired|remembered|watched]
s_manner = [slowly|quietly|carefully|gladly|softly|suddenly|together|again]
s_beside = [beside|behind|under|near|above]
)";

}  // namespace octavo::tales
