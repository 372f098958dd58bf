// The page of a plan (page.h describes its data): memory by owner, time by kernel, and controls that show what the run would
// need with other rows, lengths, formats or GPUs. plan_sums.js computes that.
// SPDX-License-Identifier: MIT
"use strict";
(() => {
  const { data, number, text, list, unknown, grouped, percent, bytes, count, stepTime, make, quiet, num, table, bar, meter } = page;
  const ownerColours = 11;  // of page.css
  const ownerStyle = (i) => "p" + (i % ownerColours);
  const plannedGpu = list(data, "gpus").find((each) => text(each, "key") !== undefined && text(each, "key") === text(data, "now", "gpu"));
  const total = number(data, "total");
  const unit = text(data, "unit") ?? "units";
  // A list such as [["weights", 202], …].
  const named = (name) => list(data, name).map((row) => [text(row, 0) ?? "", number(row, 1) ?? 0]);
  const texts = (name) => list(data, name).filter((each) => typeof each === "string");
  const barOf = (label, parts, sum, scale, limit) =>
    make("div", "bars room", make("div", "bar-row", bar(label, parts, scale, limit), make("span", "bar-total", bytes(sum))));

  const summary = () => {
    const size = number(plannedGpu, "memory");
    const known = total !== undefined && size !== undefined;
    const left = known && (total <= size ? bytes(size - total) + " of " + bytes(size) + " are left"
      : bytes(total - size) + " more than the " + bytes(size) + " that there are");
    const code = (word) => [make("code", "", word), " "];
    page.header("Octavo plan", text(data, "title") ?? "A plan", known && (total <= size ? ["fits", "good"] : ["does not fit", "bad"]),
      [code(text(data, "config") ?? ""), texts("overrides").map(code)]);
    page.main.append(page.cards(
      ["Memory of a GPU", bytes(total), left],
      ["Time of a step", stepTime(number(data, "step_seconds")), "bound by " + (text(data, "bound") ?? unknown)],
      ["Throughput", count(number(data, "units_per_second")) + " " + unit + "/s", "of all GPUs"]));
  };
  const memory = () => {
    const rows = named("memory_rows").map(([name, value], i) => [name, ownerStyle(i), value]).filter((row) => row[2] !== 0);
    if (!rows.length) return [];
    const sum = rows.reduce((all, row) => all + row[2], 0);
    const whole = total ?? sum;
    return [
      barOf("memory by owner", rows, whole, Math.max(whole, sum, number(plannedGpu, "memory") ?? 0, 1)),
      table("owners", ["owner", num("bytes"), num("share")], [
        ...rows.map(([name, style, value]) =>
          [{ text: name, style: "owner " + style }, num(bytes(value), grouped(value)), num(percent(value / Math.max(whole, 1)))]),
        [{ text: "in all", style: "sum" }, { ...num(bytes(whole), grouped(whole)), style: "num sum" }, { text: "100%", style: "num sum" }]]),
      quiet("Of it torch allocates " + bytes(number(data, "allocated")) + " at the peak and reserves " + bytes(number(data, "reserved")) +
        ". The width of the bar is the GPU's memory, or the plan's where that is more."),
    ];
  };
  const mostKernels = 12;
  const kernels = () => {
    const all = named("kernels");
    const sum = all.reduce((seconds, each) => seconds + each[1], 0);
    const most = Math.max(...all.map((each) => each[1]));
    const others = all.slice(mostKernels);
    const shown = all.slice(0, mostKernels);
    if (others.length) shown.push([others.length + " others", others.reduce((seconds, each) => seconds + each[1], 0)]);
    return all.length > 0 && table("meters", ["launched by", num("time"), num("share"), ""], shown.map(([name, seconds]) =>
      [{ text: name, style: "code" }, num(stepTime(seconds)), num(percent(sum > 0 ? seconds / sum : 0)), meter(seconds, most)]));
  };
  const lengthsKnown = data?.lengths_known !== false;
  const owners = ["weights", "gradients", "activations", "workspace", "rounding", "fragmentation"];
  const points = () => {
    const [all, states] = [list(data, "points"), list(data, "states")];
    const row = (point) => [grouped(number(point, "rows")), ...(lengthsKnown ? [num(grouped(number(point, "length")))] : []),
      point?.checkpointing === true ? "yes" : "no", ...owners.map((owner) => num(bytes(number(point, owner)))), num(stepTime(number(point, "step_seconds")))];
    return [
      all.length > 0 && table("points", ["rows", ...(lengthsKnown ? [num("length")] : []), "checkpointing", ...[...owners, "step"].map((each) => num(each))],
        all.map(row)),
      states.length > 0 && [make("br"), table("states", ["state format", num("optimizer states"), num("master bits")],
        states.map((state) => [text(state, "name") ?? "", num(bytes(number(state, "states"))), num(bytes(number(state, "master")))]))],
    ];
  };

  // The controls need all of the data.
  const whatIf = () => {
    const now = data.now || {};
    const { mostRows, planned, seriesOf, along, nearest, ownersOf, sum, largest, slowdown } = planSums(data);
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
    const exact = input("rows", "number", mostRows);
    const range = input("rows-range", "range", 2 * Math.max(4, firstRows, ...distinct("rows")));
    range.setAttribute("aria-label", "Rows of a batch");
    exact.defaultValue = range.defaultValue = String(firstRows);
    labelled("Rows of a batch, on each GPU", "wide", make("span", "pair", range, exact));
    const lengths = distinct("length").sort((a, b) => a - b);
    const same = (key) => (value) => value === now[key];
    const length = choose("length", "Length", lengths, (value) => (lengthsKnown ? grouped(value) : "as planned"), same("length"));
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

    const results = make("div");
    results.setAttribute("role", "status");
    const drawn = make("div");
    const notes = quiet();
    const form = make("form", "", controls);

    const drawMemory = (owners, total, memory) => {
      const before = new Map(named("memory_rows"));
      const parts = [...owners].map(([name, value], i) => [name, ownerStyle(i), value]);
      const most = Math.max(1, ...owners.values());
      drawn.replaceChildren(
        barOf("memory by owner with these settings", parts, total, Math.max(total, memory), memory),
        table("meters", ["owner", num("planned"), num("here"), { text: "", style: "meter" }], [
          ...parts.filter(([name, , value]) => value || before.get(name)).map(([name, style, value]) =>
            [{ text: name, style: "owner " + style }, num(bytes(before.get(name) || 0)), num(bytes(value)), meter(value, most, style)]),
          [{ text: "in all", style: "sum" }, ...[sum(before), total].map((each) => ({ text: bytes(each), style: "num sum" })), ""]]));
    };

    const draw = () => {
      const rows = Math.min(mostRows, Math.max(1, Math.round(Number(exact.value)) || 1));
      const choice = { length: length.value(), checkpointing: checkpointing.value(), state: state.value(), gpu: gpu.value(),
        num_gpus: gpus.value(), zero: zero.value() };
      zero.select.disabled = choice.num_gpus === 1;
      const series = seriesOf(choice);
      if (!series.length) {
        results.replaceChildren(page.cards(["Memory of a GPU", "not planned", "there is no plan of this length with this checkpointing", "", "verdict"]));
        [drawn, notes].forEach((each) => each.replaceChildren());
        return;
      }
      const owners = ownersOf(series, choice, rows);
      const total = sum(owners);
      const left = choice.gpu.memory - total;
      const seconds = along(series, rows, "step_seconds") * slowdown(choice.gpu);
      const point = nearest(series, rows);
      const rate = point.units * (rows / point.rows) * choice.num_gpus / seconds;
      const most = largest(series, choice);
      results.replaceChildren(page.cards(
        ["Memory of a GPU", left >= 0 ? "fits" : "does not fit",
          bytes(total) + " of " + bytes(choice.gpu.memory) + (left >= 0 ? ", " + bytes(left) + " are left" : ", " + bytes(-left) + " too much"),
          left >= 0 ? "good" : "bad", "verdict"],
        ["Rows that fit", most === 0 ? "none" : most >= mostRows ? "any number" : "up to " + grouped(most), "of a batch, on each GPU", "", "most"],
        ["Time of a step", stepTime(seconds), choice.gpu === planned ? "" : "rough: scaled from " + planned.name, "", "step"],
        ["Throughput", seconds > 0 ? count(rate) + " " + unit + "/s" : unknown, "of all GPUs", "", "rate"]));
      drawMemory(owners, total, choice.gpu.memory);
      const [first, last] = [series[0].rows, series[series.length - 1].rows];
      const remarks = [];
      if (rows < first || rows > last) remarks.push("Plans were made of " + grouped(first) + " to " + grouped(last) + " rows: these numbers continue their line.");
      if (choice.gpu !== planned) remarks.push("Time on another GPU is rough: it grows by the worse of the two ratios of bandwidth and of bf16 rates.");
      if (choice.num_gpus !== (now.num_gpus || 1)) remarks.push("Time and memory of communication among this number of GPUs were not planned and are not counted anew.");
      notes.replaceChildren(remarks.join(" "));
    };

    range.addEventListener("input", () => { exact.value = range.value; });
    exact.addEventListener("input", () => { range.value = exact.value; });
    form.addEventListener("input", draw);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(draw));  // the controls change after this event
    draw();
    return [form, results, drawn, notes];
  };

  summary();
  page.section("memory", "Memory by owner", memory());
  page.section("what-if", "What if", ["gpus", "states", "points"].every((name) => list(data, name).length) && whatIf());
  page.section("time", "Time by kernel", kernels());
  page.section("text", "What the command says", texts("lines").length > 0 &&
    make("div", "scroll", make("pre", "command", texts("lines").map((line) => line + "\n"))));
  page.section("points", "What the controls compute from", points());
  page.footer("Made by octavo plan. This page needs no network.");
})();
