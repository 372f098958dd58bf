// The sentences of the tales; see grammar.h for the notation. h is the hero, f the friend, o the stranger.
// Each has a name, a .kind, a .trait, and the pronouns .he, .him, .his and .self. {thing} and {town} stay the
// same throughout a tale.
// SPDX-License-Identifier: MIT
#include "apps/octavo/tales/grammar.h"

namespace octavo::tales {

const std::string_view kTaleSentences = R"(
= tale
<opening>~<wish>~<parting>~<road>~<meeting>~<road>~<night>~<trouble>~<rescue>~<ending>
<opening>~<parting>~<road>~<meeting>~<trouble>~<rescue>~<letter>~<ending>
<opening>~<wish>~<road>~<meeting>~<night>~<trouble>~<rescue>~<ending>
<opening>~<letter>~<parting>~<road>~<night>~<meeting>~<rescue>~<ending>
<opening>~<wish>~<meeting>~<road>~<trouble>~<rescue>~<ending>
<opening>~<road>~<wish>~<parting>~<meeting>~<road>~<trouble>~<night>~<rescue>~<letter>~<ending>

= title
the {h.kind} and the {thing}
{h} and the {thing}
the {h.trait} {h.kind} of {town}
how {h} found the {thing}
the {thing} of {town}
{h} and {f}
the {h.kind} who wanted @ {thing}
<number> <span> in {town}

= town
<town_start><town_end>

= noun
<look> <object>
<object>
<size> <object>
<object> of <stuff>
<size> <look> <object>

= one
@ <noun>
the <noun>
<number> <object.2>
some <food>
@ <noun>
a sack of <stuff>
a little <stuff>
a basket of <food>
a piece of <stuff>

= creature
@ <beast>
@ <person>
@ <size> <beast>
@ <trait> <person>
<number> <beast.2>
the <person> of <town>
an old <person>

= sight
<creature>
<one>
@ <size> <building>
@ <plant>
the <building> of <town>

= place
the <building>
the <land>
the <size> <building>
<town>
the <land> of <town>
the <building> <where>
the market of {town}

= act
<went> to <place>
<made> <one>
<met> <creature>
<saw> <sight> <where>
<went> <where>
<handled> the <object> <manner>
<made> <one> <where>
sat down <where>
[walked|went|travelled|crept] <gait> to <place>
ate some <food>
<met> <creature> <where>
looked for <one>
asked <creature> the way to <place>
dreamed of <sight>
slept <where>
gave <one> to <creature>
waited <where> <manner>
cooked some <food> with <food>
sang a song about <sight>

= sky_line
the <sky> [came|rose|faded|returned] over the <land>.
there was no <sky> that [day|night|week|morning], and the <land> lay still.
<sky> and <sky> had come to {town}.
the <plant> by the <building> was [white|heavy|bright|dark|wet] with [frost|rain|dew|snow|blossom].
it was <day>, and it [rained|snowed|was hot|was foggy|was bitterly cold|was pleasantly warm].
far away, <where>, there was a sound of <sound>.
the <building> smelled of <food> and <stuff>.
<number> <1=beast.2> sat <where>. not one of the {1.2} moved.
@ <1=beast> sat <where>, and the {1} was <feeling>.
every <1=person> in {town} had @ <2=object>, and every {2} was <look>.
nobody in {town} had [seen|bought|found|sold|stolen] so much <stuff> since <month>.
between the <land> and the <land> stood @ <size> <building>.
on the wall hung <number> <object.2>, @ <object> and @ <noun>.
@ <person> with @ <noun> went by. he was @ <trait> man.

= hero_line
{h} <act>.
{h} <act>, and then {h.he} <act>.
{h} <act>. {h.he} <act>.
<when> {h} <act>.
{h} <act>, <act> and <act>.
{h} <act>. <when> {h.he} <act>.
when {h} <act>, {h.he} was <feeling>.
because {h.he} was <feeling>, {h} <act>.
the {h.kind} <act>, but {h.he} was still <feeling>.
{h} <made> <one>, for {h.he} was @ {h.trait} {h.kind}.
{h} had never [owned|wanted|lost|understood] <one> before, and {h.his} <body> [hurt|trembled|itched|was cold].
with @ <object> in {h.his} [hand|pocket|basket|bag], {h} <act>.
{h} thought of the {thing}, and {h.he} was <feeling>.
{h} had <number> <1=object.2>; <when> {h.he} gave the {1.2} to <creature>.
neither the <sky> nor the <sky> could stop {h}, for {h.he} was {h.trait}.
{h} told {h.self} that <virtue> was worth more than <stuff>.
as {h} <went> along, {h.he} counted the <beast.2>: one, two, three, [four|four, five|and no more].
if {h} had had @ <object>, {h.he} would have been <feeling>.

= friend_line
{f} <act>.
{f} <act>, while {h} <act>.
<when> {f} <act>, and {h} helped {f.him}.
{h} and {f} <act> together.
{f} <act>. {f.he} was <feeling>.
{f} showed {h} <sight>.
the {f.kind} was <feeling>, but {f.he} said nothing.
{f} had hurt {f.his} <body>, so {f.he} <act>.
{h} and {f} shared the <food> and the <food>, and {f} had the larger half.
{f}, who was {f.trait}, <act>.

= line
<hero_line>
<friend_line>
<hero_line>
<sky_line>
<hero_line> <friend_line>

= opening
once upon a time there lived in {town} @ {h.trait} {h.kind} whose name was {h}. {h.he} had @ <noun>, <number> <object.2> and a friend called {f}, who was @ {f.kind}. <line>
in the [town|village|harbour|old city] of {town}, <where>, lived {h} the {h.kind}. everybody called {h.him} {h.trait}. next door lived {f}, @ {f.kind}. <sky_line> <line>
there was once @ {f.kind} named {f}, and {f.his} best friend was {h}, @ {h.kind}. {f} was {f.trait}; {h} was {h.trait}. <line> <line>
[two|three|five|seven] hundred years ago, when the <land> was still [wild|young|green|full of <beast.2>], @ {h.kind} called {h} came to {town} with {f}, @ {f.trait} {f.kind}. <line> <friend_line>
nobody in {town} knew where {h} the {h.kind} had been born. {h.he} was {h.trait}, and {h.he} loved <food>. {h.his} only friend was {f}, @ {f.trait} {f.kind}. <line>

= wish
more than anything, {h} wanted @ {thing}. {h.he} thought of it <when> and <when>. <hero_line> <talk_f>
one [morning|evening|day] {h} heard that @ {thing} was hidden <where>. <hero_line> {h.he} could not sleep, for {h.he} was too <feeling>. <talk_f>
"^[I wish I had|what I need is|if only I had] @ {thing}," said {h}. <talk_f> <hero_line>
{h.his} old {thing} was [broken|lost|stolen|gone]. {h} looked <where>, <where> and even <where>, and {h.he} was <sorrow>. <line> <talk_f>

= parting
so {h} said goodbye to {town}. {h.he} took <one>, <one> and some <food>, and {h.he} <went> to <place>. <line>
"<promise>," {h} told {f}. "<farewell>" <hero_line> <sky_line>
<when> they set out, {h} in front and {f} behind. {f} carried <one>; {h} carried <one>. <line> <line>

= road
<line> <line> <line>
<sky_line> <line> <hero_line>
<hero_line> <hero_line> <sky_line> <line>
<line> <talk_f> <line>
for <number> <span> they followed the <land>. <line> <line> <friend_line>
the road led past <place>, past <place> and at last to <place>. <line> <line>
<line> <talk_f>
<sky_line> <sky_line> <line> <line>

= meeting
<when> they met {o}, @ {o.trait} {o.kind}, <where>. <talk_o> <talk_o> <hero_line>
<where> sat @ {o.kind}, and {o.his} name was {o}. {o} <act>. <talk_o> <line>
then {o} the {o.kind} came out of <place>. {o.he} had @ <noun> on {o.his} <body>. <talk_o> <talk_o>
"[^stop|^halt|^wait|^hush]!" cried a voice. it was {o}, the {o.trait} {o.kind}. <talk_o> <line> <talk_o>
<sky_line> {o} the {o.kind} <act>. when {o.he} saw {h}, {o.he} was <feeling>. <talk_o>

= night
that night {h} slept <where>. {h.he} dreamed that <number> <1=beast.2> <went> to <place>, and that the {1.2} <saw> <one>. <song> <hero_line>
when it was dark they lit @ [lantern|candle|lamp|fire] and sat <where>. {f} sang:~<song_lines>~then {h} <act>, and {f} slept.
the night was [long|cold|clear|full of stars]. <line> <ask> soon they were both asleep.

= song
in the dream somebody sang [softly|loudly|sadly|merrily].
{h} woke at the sound of <sound>.
in the dream {f} was @ <beast>.

= song_lines
^oh, bring me @ <object> to light up the night,+^and I'll bring you some <food> when the morning is bright.
^the <sky> on the <land> is as cold as a stone,+^but @ <object> and @ <beast> will not leave me alone.
^my <object> is <look>, my <object> is old,+^and I'd sell you them both for a handful of gold.
^the <beast.2> are asleep and the <beast.2> are away,+^so we'll dance by the <building> till the end of the day.
^I once had @ <beast>, and it lived by the sea,+^and it ate all the <food> and left nothing for me.
^there's @ <person> in <town> who can whistle and sing,+^and he wears @ <look> <object> tied up with a string.
^go over the <land>, go under the hill,+^and there stands the <building>, and there it stands still.
^come in from the <sky>, come in at the door:+^we have <food>, we have <food>, we have <number> of them more.
^the <plant> is in flower, the swallow flies by,+^and <number> <look> <object.2> hang up in the sky.
^sleep well, little <beast>, in your basket of hay,+^for the <person> will come with some <food> one day.
^who goes to the <land>? said the <beast> to the bee.+^who goes there with <food>? ^is there <food> for me?
^if <day> is rainy, then <day> is fine,+^and the <object> is yours, but the <object> is mine.

= trouble
but {o} was not as {o.trait} as {o.he} seemed. <when> {o.he} took the <object>, the <food> and even the <object>, and {o.he} <went> to <place>. <line> <hero_line>
suddenly there was a sound of <sound>. @ <noun> fell <where>, and {h} could not move {h.his} <body>. {h.he} was <sorrow>. <talk_f> <line>
then the [storm|rain|wind|snow|mist] grew worse. the <building> [shook|fell down|burned|was flooded], and the <noun> [fell into the river|rolled away|was gone|broke in two]. <line> {h} was <sorrow>.
<number> <1=beast.2> stood in the way. "[^nobody passes here|^go back|^pay us]," said the {1.2}, "or give us <number> <object.2>." <talk_f> <hero_line>
{h} and {f} began to quarrel. {h} wanted to go to <place>; {f} wanted to go to <place>. "<insult>," said {h}. "<insult>," said {f}. <hero_line> <sky_line>

= rescue
then {h} remembered what {o} had said. {h.he} took <one> and @ <object>, and {h.he} <handled> the {thing} <manner>. <line> <talk_f>
it was {f} who saved them. {f.he} <act>, {f.he} <act>, and behold: there was the {thing}. <talk_f> <hero_line>
"[^listen|^look|^quick|^now]!" {h} <said>. "<plan>" so {f} <act>, and {h} <act>. <line>
<when> {o} came back. {o.he} was <sorrow>. "<sorry>," said {o}, and {o.he} gave {h} the {thing}. <line> <line>
at last {h} found the {thing} <where>, under @ <noun>. <line> <hero_line>

= letter
<when> a letter came. it said:~"^dear {h},+<letter_line> <letter_line> <letter_line>+^your friend, {o}."~{h} read it <manner>. <hero_line>
{h} wrote a letter to {o}:~"^dear {o},+<letter_line> <letter_line>+^your {h.trait} friend, {h}."~then {h.he} <act>.

= letter_line
^the <land> is <scenery> this year.
^I have <number> <object.2> now, and I still want @ <object>.
^on <day> I <saw> <sight>.
^please send me some <food> and @ <object>.
^the <1=person> here has @ <2=beast>, and the {2} eats nothing but <food>.
^do you remember the <building> of <town>?
^my <body> is better, thank you.
^{f} <act>, and we laughed.
^the price of <stuff> is now <number> pence.

= scenery
beautiful / dry / green / full of <beast.2> / under water / as quiet as @ <building> / white with <sky>

= talk_f
<ask>
"<remark>," said {f}. "<remark>," said {h}.
{f} [shook|nodded|lifted] {f.his} head. "<remark>," {f.he} <said>.
"<promise>," {h} promised, and {f} was <feeling>.
"<remark>," <said> {h}, but {f} <act>.

= ask
"^where is the <1=noun>?" asked {f}. "^the {1} is <where>," said {h}.
"^are you <1=feeling>, my friend?" asked {f}. "^yes," said {h}, "I am as {1} as @ <beast>."
"^how many <1=beast.2> do you see?" asked {h}. {f} counted the {1.2}. "<number>," {f.he} said.
"^why did you [hide|sell|paint|break] the <1=object>?" asked {h}. "^because the {1} was <look>," said {f}.
"^is it far to <1=town>?" asked {f}. "{1} is <number> miles from here," said {h}.
"^have we any <1=food> left?" asked {f}. "^no {1}, but some <food>," answered {h}.
"^who [made|mended|sold] this <1=object>?" {h} asked. "@ {1} like that? @ <person> from <town>," said {f}.
"^what would you do with <1=number> <2=object.2>?" asked {f}. "^I would sell {1} {2.2} and buy @ <object>," {h} said.
"^may I carry the {thing}?" asked {f}. "^no, you are too {f.trait}," said {h}.

= talk_o
"^who are you?" [asked|demanded] the {o.kind}. "^I am {h}, @ {h.kind} from {town}," <said> {h}.
"<remark>," said {o}. "^and <remark_low>."
"^my name is {o}," said the {o.kind}. "^and mine is {h}," said the {h.kind}. "^have you seen @ {thing}?"
"^good [morning|evening|day]," said {h}. "^good [morning|evening|day] to you," said {o}. "^where are you going?" "^to <place>," said {h}.
"<bargain>," said {o}. "<answer>," {h} <said>.
"^what is in that <1=holder>?" asked {o}. "^I have some <food> in the {1}," said {h}, "but you may not have it."
"^<1=number> <2=object.2> I had," said {o}, "and all {1} {2.2} are [lost|sold|broken]." {h} gave {o.him} <one>.
"^what do you know about <1=virtue>?" asked {o}. "{1} is worth more than <stuff>," said {h}.
"^have you heard the news from <1=town>?" {o} asked. "^the <person> of {1} has lost <number> <object.2>."

= remark
^<remark_low>

= remark_low
the <land> is <scenery>
<virtue> is better than <stuff>
I have never seen such @ <noun>
the <person> always says that <vice> comes before [rain|trouble|a fall|supper]
we need <one> and <one>
there is @ <beast> <where>
I would rather have @ <object> than <number> <object.2>
we must eat, and we have no <food>
the <beast.2> are [asleep|coming|singing|gone], and the <beast> is [asleep|coming|singing|gone] too
<town> is <number> miles from here
it is [too late|too early|not far|a long way|only @ <beast>]
I can hear <sound> <where>
you are as <trait> as @ <beast>
nobody knows who <made> the <noun>

= answer
^yes, but I am <feeling>
^no, I am only @ {h.kind} from {town}
^that is what the <person> of <town> said
^I have nothing but some <food> and @ <object>
^ask the <beast>
^I [left|lost|hid] it <where>
^I do not know, but <remark_low>
^not before <day>

= promise
^I shall be back before [<day>|the <sky>|<month>|the <food> is cold]
^I shall bring you @ <noun>
^we shall have <food> every <day>
^I will never [sell|lose|forget] the {thing}

= farewell
^take care of the <object.2>.
^do not forget to feed the <beast.2>.
^eat some <food>, and think of me.
^leave @ <object> in the window.

= insult
^you are more {f.trait} than @ <beast>
^you and your <noun>
^even @ <beast> knows that
^I should have stayed in {town}

= plan
^you take the <noun>, and I shall take the <object>.
^if we put the <object> <where>, the <beast.2> will [run away|follow us|fall asleep].
^give @ <object> to the <person>, and do not look back.

= sorry
^I was wrong about <virtue>
^forgive me; <vice> made me do it
^I only wanted @ <object>

= bargain
^I will give you @ <noun> for the <food>
^guess my age, and you may have <number> <object.2>
^bring me <one>, and I shall show you the {thing}
^mend my <1=object>, for without @ {1} I am <feeling>

= ending
so {h} and {f} came home to {town} with the {thing}. <line> and since that day everybody in {town} knows that <virtue> is worth more than <stuff>.
<when> they were home again. {h} put the {thing} <where>, and {f} ate <food>. <line> they were <joy> for <number> <span>, and perhaps they still are.
{h} gave the {thing} to {f}, for {h.he} had learned that <virtue> is better than any {thing}. <line> that is the end of the tale.
and if the {thing} has not been [lost|sold|broken|eaten by <beast.2>], it is still in the <building> of {town}. <line> where there is <vice>, there is no peace; where there is <virtue>, there is <food> for all.
)";

}  // namespace octavo::tales
