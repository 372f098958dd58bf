// The controls of a plan's page: what the run would need with other rows, lengths, formats or GPUs. plan_sums.js
// computes it. Where there are no plans to compute from, the page has no place for controls, and this does nothing.
// SPDX-License-Identifier: MIT
"use strict";
(() => {
  const place = document.getElementById("what-if-controls");
  if (!place) return;
  const data = JSON.parse(document.getElementById("data").textContent);
  const now = data.now || {};
  const ownerColours = 11;  // of plan.css
  const { mostRows, planned, seriesOf, along, nearest, ownersOf, sum, largest, slowdown } = planSums(data);

  // Numbers as train/base/numbers.h writes them.
  const scaled = (value, units) => {
    let unit = 0;
    while (Math.abs(value) >= 999.5 && unit + 1 < units.length) {
      value /= 1000;
      unit += 1;
    }
    const whole = unit === 0 || Math.abs(value) >= 99.95;
    return value.toFixed(whole ? 0 : Math.abs(value) >= 9.995 ? 1 : 2) + units[unit];
  };
  const bytes = (value) => scaled(value, [" B", " kB", " MB", " GB", " TB", " PB"]);
  const count = (value) => scaled(value, ["", "k", "M", "G", "T"]);
  const grouped = (value) => Math.round(value).toLocaleString("en");
  const stepTime = (seconds) => {
    if (seconds < 0.9995) return Number((seconds * 1e3).toPrecision(3)) + " ms";
    return (seconds < 99.95 ? Number(seconds.toPrecision(3)) : grouped(seconds)) + " s";
  };

  // Elements. Texts are set as texts: no string of the data becomes markup.
  const make = (tag, style, ...inside) => {
    const out = document.createElement(tag);
    if (style) out.className = style;
    out.append(...inside);
    return out;
  };
  const controls = make("div", "controls");
  const labelled = (name, style, ...inside) => controls.append(make("div", style, make("label", "", name, ...inside)));
  // A select over values of any type; it begins with the one that `chosen` accepts.
  const choose = (id, name, values, text, chosen, style) => {
    const select = make("select");
    select.id = id;
    values.forEach((value, i) => {
      const option = make("option", "", text(value));
      option.value = String(i);
      option.defaultSelected = chosen(value);
      select.append(option);
    });
    select.disabled = values.length < 2;
    labelled(name, style || "", select);
    return { select, value: () => values[select.selectedIndex] };
  };
  const distinct = (key, ...more) => [...new Set([...data.points.map((each) => each[key]), ...more])];
  const input = (id, type, most) => Object.assign(make("input"), { id, type, min: "1", max: String(most), step: "1" });

  const firstRows = now.rows || data.points[0].rows;
  const number = input("rows", "number", mostRows);
  const range = input("rows-range", "range", 2 * Math.max(4, firstRows, ...distinct("rows")));
  range.setAttribute("aria-label", "Rows of a batch");
  number.defaultValue = range.defaultValue = String(firstRows);
  labelled("Rows of a batch, on each GPU", "wide", make("span", "pair", range, number));
  const lengths = distinct("length").sort((a, b) => a - b);
  const same = (key) => (value) => value === now[key];
  const length = choose("length", "Length", lengths, (value) => (data.lengths_known === false ? "as planned" : grouped(value)), same("length"));
  const checkpointing = choose("checkpointing", "Checkpointing", distinct("checkpointing").sort(), (value) => (value ? "on" : "off"), same("checkpointing"));
  const gpu = choose("gpu", "GPU", data.gpus, (each) => each.name + ", " + bytes(each.memory), (each) => each === planned, "wide");
  const numbers = [...new Set([1, 2, 4, 8, 16, 32, 64, 128, now.num_gpus || 1])].sort((a, b) => a - b);
  const gpus = choose("num_gpus", "Number of GPUs", numbers, String, (value) => value === (now.num_gpus || 1));
  const zeros = { none: "none", zero1: "ZeRO-1: states", zero2: "ZeRO-2: states, gradients" };
  const zero = choose("zero", "Shared among GPUs", Object.keys(zeros), (value) => zeros[value], same("zero"));
  const state = choose("state", "State format", data.states, (each) => each.name, (each) => each.name === now.state);
  const reset = make("button", "", "As planned");
  reset.type = "reset";
  controls.append(make("div", "", reset));

  const results = make("dl", "cards");
  results.setAttribute("role", "status");
  const stack = make("div", "bars");
  const table = make("div", "scroll");
  const notes = make("p", "quiet");
  const form = make("form", "", controls);
  place.append(form, results, stack, table, notes);

  const card = (id, name, value, note, style) => {
    const shown = make("dd", style || "", value);
    shown.id = id;
    return make("div", "card", make("dt", "", name), shown, make("dd", "note", note));
  };
  const drawMemory = (owners, total, memory) => {
    const plan = new Map(data.memory_rows);
    const width = (value, whole) => Math.min(100, 100 * value / whole).toFixed(3) + "%";
    const scale = Math.max(total, memory);
    const bar = make("div", "stack");
    bar.setAttribute("aria-hidden", "true");  // the table says the same
    const body = make("tbody");
    const row = (style, name, was, is, cell) => {
      const head = make("th", style, name);
      head.scope = "row";
      body.append(make("tr", style === "sum" ? style : "", head, make("td", "num", bytes(was)), make("td", "num", bytes(is)), cell));
    };
    const most = Math.max(1, ...owners.values());
    [...owners].forEach(([name, value], i) => {
      if (!value && !plan.get(name)) return;
      const part = make("span", "p" + (i % ownerColours));
      const meter = make("span");
      part.style.width = width(value, scale);
      part.title = name + ": " + bytes(value);
      meter.style.width = width(value, most);
      bar.append(part);
      row("owner p" + (i % ownerColours), name, plan.get(name) || 0, value, make("td", "meter p" + (i % ownerColours), meter));
    });
    row("sum", "in all", sum(plan), total, make("td", "meter"));
    if (total > memory) {
      const limit = make("span", "limit");
      limit.style.left = width(memory, scale);
      bar.append(limit);
    }
    stack.replaceChildren(make("div", "bar-row", bar, make("span", "bar-total", bytes(total))));
    const heads = ["owner", "planned", "here", ""].map((text, at) => make("th", ["", "num", "num", "meter"][at], text));
    heads.forEach((each) => { each.scope = "col"; });
    table.replaceChildren(make("table", "meters", make("thead", "", make("tr", "", ...heads)), body));
  };

  const draw = () => {
    const rows = Math.min(mostRows, Math.max(1, Math.round(Number(number.value)) || 1));
    const choice = { length: length.value(), checkpointing: checkpointing.value(), state: state.value(), gpu: gpu.value(),
      num_gpus: gpus.value(), zero: zero.value() };
    zero.select.disabled = choice.num_gpus === 1;
    const series = seriesOf(choice);
    if (!series.length) {
      results.replaceChildren(card("verdict", "Memory of a GPU", "not planned", "there is no plan of this length with this checkpointing"));
      [stack, table, notes].forEach((each) => each.replaceChildren());
      return;
    }
    const owners = ownersOf(series, choice, rows);
    const total = sum(owners);
    const left = choice.gpu.memory - total;
    const seconds = along(series, rows, "step_seconds") * slowdown(choice.gpu);
    const point = nearest(series, rows);
    const rate = point.units * (rows / point.rows) * choice.num_gpus / seconds;
    const most = largest(series, choice);
    const of = " of " + bytes(choice.gpu.memory);
    results.replaceChildren(
      card("verdict", "Memory of a GPU", left >= 0 ? "fits" : "does not fit",
        bytes(total) + of + (left >= 0 ? ", " + bytes(left) + " are left" : ", " + bytes(-left) + " too much"), left >= 0 ? "good" : "bad"),
      card("most", "Rows that fit", most === 0 ? "none" : most >= mostRows ? "any number" : "up to " + grouped(most), "of a batch, on each GPU"),
      card("step", "Time of a step", stepTime(seconds), choice.gpu === planned ? "" : "rough: scaled from " + planned.name),
      card("rate", "Throughput", seconds > 0 ? count(rate) + " " + data.unit + "/s" : "–", "of all GPUs"));
    drawMemory(owners, total, choice.gpu.memory);
    const [first, last] = [series[0].rows, series[series.length - 1].rows];
    const said = [];
    if (rows < first || rows > last) said.push("Plans were made of " + grouped(first) + " to " + grouped(last) + " rows: these numbers continue their line.");
    if (choice.gpu !== planned) said.push("Time on another GPU is rough: it grows by the worse of the two ratios of bandwidth and of bf16 rates.");
    if (choice.num_gpus !== (now.num_gpus || 1)) said.push("Time and memory of communication among this number of GPUs were not planned and are not counted anew.");
    notes.replaceChildren(said.join(" "));
  };

  range.addEventListener("input", () => { number.value = range.value; });
  number.addEventListener("input", () => { range.value = number.value; });
  form.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(draw));  // the controls change behind this event
  draw();
})();
