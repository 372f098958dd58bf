// The vocabulary of the tales; see grammar.h for the notation. Words whose first sound differs from their
// first letter (hour, unicorn, one) are omitted, because the article is chosen by the letter.
// SPDX-License-Identifier: MIT
#include "apps/octavo/tales/grammar.h"

namespace octavo::tales {

const std::string_view kTaleWords = R"(
= he_start
Al / Ber / Cor / Dun / Ed / Fer / Gar / Har / Jas / Lor / Mar / Nor / Os / Per / Rol / Sim / Tob / Wil / Bar / Ger
= he_end
win / bert / rick / den / mund / ric / ton / fred / old / gar / ward / mar / nard / ley
= she_start
A / Be / Cla / Do / E / Flo / Ga / He / I / Ju / Li / Ma / Ne / O / Pe / Ro / Se / Ti / Vi / Wi
= she_end
lla / rina / netta / della / sanna / mira / linda / velle / rosa / tilda / bella / nora
= town_start
Alder / Bram / Castle / Dun / East / Fen / Grey / Hazel / Iron / Lark / Mill / North / Oak / Pebble / Quill / Raven / Salt / Thorn / Under / Willow / Ash / Copper
= town_end
wick / ford / mere / stow / bridge / ham / field / holm / gate / combe / cliff / haven
= person
baker / miller / weaver / tailor / printer / bookbinder / shepherd / fisher / clockmaker / gardener / carpenter / sailor / teacher / candlemaker / potter / ferryman / piper / cook / cobbler / juggler / lamplighter / beekeeper / mapmaker / blacksmith / glassblower / drummer / painter / doctor / innkeeper / postman
= beast
fox:foxes / hare:hares / goose:geese / mouse:mice / bear:bears / hedgehog:hedgehogs / crow:crows / goat:goats / cat:cats / wolf:wolves / otter:otters / owl:owls / badger:badgers / heron:herons / donkey:donkeys / frog:frogs / squirrel:squirrels / sparrow:sparrows / mole:moles / dog:dogs / hen:hens / magpie:magpies / ox:oxen / sheep:sheep / turtle:turtles / swan:swans / bee:bees / rat:rats / pony:ponies / duck:ducks
= trait
clever / patient / proud / stubborn / cheerful / lazy / brave / quiet / greedy / gentle / curious / careful / forgetful / polite / shy / hungry / loyal / restless / cunning / kindly / boastful / thoughtful / merry / grumpy / nimble / sleepy
= size
small / old / large / little / long / round / narrow / tall / tiny / heavy / broad / crooked / short / thin / enormous
= look
golden / silver / wooden / green / blue / painted / broken / shining / dusty / red / copper / empty / rusty / white / black / striped / glass / borrowed / polished / folded / brown / yellow / leather / marble / forgotten / embroidered / secret / iron / paper / velvet
= object
lantern:lanterns / book:books / key:keys / bell:bells / ring:rings / kettle:kettles / map:maps / box:boxes / clock:clocks / boat:boats / violin:violins / coat:coats / letter:letters / mirror:mirrors / ladder:ladders / basket:baskets / drum:drums / hat:hats / spoon:spoons / wheel:wheels / candle:candles / cup:cups / flute:flutes / chair:chairs / button:buttons / needle:needles / rope:ropes / barrel:barrels / cloak:cloaks / feather:feathers / compass:compasses / pocket watch:pocket watches / umbrella:umbrellas / inkpot:inkpots / hammer:hammers
= food
bread / cheese / honey / soup / apples / onions / pears / cake / porridge / plums / butter / nuts / milk / cabbage / jam / pancakes / turnips / raisins / mushrooms / salted fish / gingerbread / barley / cherries / beans
= building
mill / tower / church / inn / bakery / bridge / market / lighthouse / castle / school / barn / library / stable / workshop / harbour / cottage / chapel / windmill / forge / warehouse / cellar / attic / orchard / printing house
= land
forest / river / valley / hill / lake / marsh / meadow / mountain / island / moor / shore / wood / desert / cave / village / heath / canal / garden / waterfall / plain
= sky
wind / rain / snow / sun / moon / mist / frost / storm / thunder / starlight / hail / evening
= plant
oak / willow / rose / nettle / apple tree / thistle / ivy / birch / mushroom / fern / bramble / pine / reed / poppy / clover / chestnut / hawthorn / dandelion / moss / elm
= stuff
gold / straw / wool / stone / ink / paper / silk / iron / salt / flour / wax / sand / coal / water / string / clay / tin / wood / linen / amber
= number
two / three / four / seven / five / twelve / six / nine / ten / eight / eleven / twenty / thirteen / forty / thirty
= ordinal
first / second / third / fourth / fifth / seventh / last / next
= span
days / nights / weeks / winters / mornings / years / summers / months
= day
Monday / Tuesday / Wednesday / Thursday / Friday / Saturday / Sunday
= month
January / February / March / April / May / June / July / August / September / October / November / December
= when
in the morning / at noon / at night / before dawn / after supper / in the evening / at last / the next day / on <day> / one day in <month> / after <number> <span> / towards midnight / when the bells rang / late in <month> / a week later / early on <day>
= where
by the <building> / under the <plant> / beside the <land> / near the <building> / near the <land> / behind the <building> / across the <land> / at the edge of the <land> / on the road to <town> / at the foot of the <land> / above the <building> / in front of the <building> / between the <building> and the <land>
= manner
slowly / quietly / carefully / gladly / softly / suddenly / at once / without a word / with a sigh / in a hurry / as politely as possible / with great care / in silence / with a smile / for a long while / all alone / twice / again and again / by mistake / with both hands
= gait
slowly / quietly / gladly / all alone / in silence / without a word / with a heavy heart / as fast as possible / backwards
= holder
basket / box / bag / barrel / kettle / sack / chest / pocket / jar
= said
said / answered / cried / whispered / replied / laughed / muttered / shouted / sighed / called
= feeling
happy / sad / tired / afraid / angry / ashamed / glad / puzzled / lonely / cold / surprised / content / jealous / hopeful / worried / amazed
= virtue
patience / honesty / kindness / courage / hard work / a good friend / a kind word / curiosity / silence / sharing / a clear head / good humour / a promise / practice / trust / humility
= vice
pride / greed / haste / envy / idleness / a lie / anger / boasting / fear / gossip / vanity / a grudge
= went
walked / ran / went / hurried / rode / wandered / climbed / travelled / crept / sailed / rowed / marched / strolled / limped / danced
= saw
saw / found / noticed / remembered / watched / recognised / spied / admired / discovered
= met
met / followed / greeted / visited / helped / woke / painted / thanked / ran away from / laughed at / chased / invited
= made
made / carried / mended / hid / bought / sold / opened / lost / borrowed / wrapped / weighed / drew / counted / buried / stole / brought / cleaned
= handled
carried / hid / polished / wrapped up / painted / washed / weighed / measured / mended / dropped / shook / kissed / lifted / studied
= sorrow
sad / tired / afraid / angry / ashamed / lonely / worried / cold / jealous / in tears
= joy
happy / content / merry / glad / cheerful / rich / famous
= sound
singing / ringing / whispering / humming / shouting / snoring / laughter / crying / hammering / footsteps / music / whistling / scratching / knocking
= body
hand / nose / head / back / foot / ear / left eye / shoulder / elbow / knee
)";

}  // namespace octavo::tales
