// The page of `octavo data check`: findings, histograms, contents and characters of the recordings of manifests.
// SPDX-License-Identifier: MIT
"use strict";
(() => {
  const { data, fixed, grouped, duration, make, quiet, num, table } = page;
  const clean = data.serious === 0;

  const findings = () => [
    table("", ["finding", num("clips"), "what it means"], data.findings.map(({ name, meaning, serious, count }) =>
      [{ text: name, note: serious && "to mend" }, { text: grouped(count), style: count > 0 && serious ? "num differs" : "num" }, meaning])),
    data.findings.filter((each) => each.count > 0).map(({ name, serious, count, first }) => {
      const note = first.length < count && ", of which " + grouped(first.length) + " are listed";
      const out = make("details", "", make("summary", "", name + ": " + grouped(count), note), table("code", ["line", "recording", "finding"], first));
      out.open = serious;
      return out;
    }),
  ];
  // Each bar's title has its range and count.
  const histogram = ({ title, unit, digits, low, high, width, median, counts }) => {
    const most = Math.max(...counts);
    const bars = make("div", "plot", counts.map((count, i) => {
      const bar = make("span");
      bar.style.height = (count && Math.max(1, 100 * count / most)) + "%";
      bar.title = fixed(low + i * width, digits) + " to " + fixed(low + (i + 1) * width, digits) + " " + unit + ": " + grouped(count);
      return bar;
    }));
    bars.setAttribute("role", "img");
    bars.setAttribute("aria-label", title);
    return make("figure", "sample histogram",
      make("figcaption", "", make("strong", "", title), " ", make("small", "", "in " + unit + "; the median is " + fixed(median, digits))),
      bars, make("div", "axis", make("span", "", fixed(low, digits)), make("span", "", fixed(high, digits))));
  };
  const contents = ({ title, first, others }) => table("", [title, num("clips"), num("audio")], [
    ...first.map(([name, clips, seconds]) => [name, num(grouped(clips)), num(duration(seconds))]),
    ...(others > 0 ? [["and " + grouped(others) + " others"]] : []),
  ]);
  const characters = () => [
    make("p", "", data.characters.map(([character, count, unknown]) =>
      [make("span", unknown && "differs", character === " " ? "space" : character, " ", make("small", "", grouped(count))), " \u00a0 "])),
    quiet(grouped(data.characters.length) + " different characters, the rarest first; marked: the tokenizer does not have them."),
  ];

  page.header("Octavo data check", data.title, clean ? ["Nothing to mend", "good"] : ["To mend", "bad"]);
  page.main.append(page.cards(
    ["Clips", grouped(data.clips), "of " + grouped(data.lines) + " lines"],
    ["Audio", duration(data.seconds), fixed(data.seconds / Math.max(1, data.clips), 2) + " s a clip"],
    ["To mend", grouped(data.serious), "clips and lines"],
    ["Decoding", fixed(data.speed, 0) + "×", "as fast as listening"]));
  page.section("findings", "Findings", findings());
  page.section("histograms", "Histograms", data.histograms.length > 0 && make("div", "samples", data.histograms.map(histogram)));
  page.section("contents", "Contents", make("div", "columns", data.contents.map(contents)));
  page.section("characters", "Characters", data.characters.length > 0 && characters());
  page.footer("Made by octavo data check. This page needs no network.");
})();
