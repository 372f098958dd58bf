// The report of one or several runs (report.h describes the data): title, summary, curves, memory, examples, samples, settings,
// events.
// SPDX-License-Identifier: MIT
"use strict";
(() => {
  const { data, number, text, list, unknown, fixed, grouped, percent, bytes, count, duration, date, make, quiet, notice, num, table, bar } = page;
  const { runs } = data;
  const single = runs.length === 1;
  const colors = 8;  // of page.css

  // Names and units, from a run's own records.
  const metricLabel = (name) => (name === "wer" ? "WER" : name);
  const metricTitle = (name) => (name === "wer" ? "WER" : "Evaluation " + name);
  const metricValue = (name, value) => (name === "wer" && Number.isFinite(value) ? fixed(100 * value, 2) + "%" : fixed(value, 4));
  const rateName = (run) => run.unit.charAt(0).toUpperCase() + run.unit.slice(1) + " per second";
  // "nats per token"; empty where the loss is no entropy.
  const entropyUnit = (run, of) => (number(run.start, "unigram_entropy") === undefined ? "" : of + " per " + run.unit.replace(/s$/, ""));
  const counted = (value, one) => value + " " + one + (value === 1 ? "" : "s");
  const endings = { finished: ["Finished", "good"], interrupted: ["Interrupted", "fair"], diverged: ["Diverged", "bad"], failed: ["Failed", "bad"] };
  const endingOf = (run) => {
    const reason = text(run.end, "reason");
    if (reason === undefined) return ["No end recorded: still running, or killed", "open"];
    return Object.hasOwn(endings, reason) ? endings[reason] : [reason, "fair"];
  };

  // Names of runs, in their colours.
  const runStyle = (i) => "run r" + (i % colors);
  const runHeads = (style = "") => [{ text: "" }, ...runs.map((run, i) => ({ text: run.name, style: runStyle(i) + style }))];
  const runHeading = (i) => !single && make("h3", "", make("span", runStyle(i), runs[i].name));

  // Facts: {label, value, note, rank (what is compared between runs), better, headline (shown large)}.
  const finite = (curve) => curve.x.map((x, i) => [x, curve.y[i]]).filter(([, y]) => y !== null);
  const metricFact = (name, curve, better) => {
    const points = finite(curve);
    const word = better === "lower" ? "lowest" : "highest";
    const [, last] = points[points.length - 1] || [];
    const [step, best] = points.reduce((a, b) => ((better === "lower" ? b[1] < a[1] : b[1] > a[1]) ? b : a), points[0] || []);
    const note = !points.length ? "no evaluation" : best === last ? "its " + word : word + " " + metricValue(name, best) + " at step " + grouped(step);
    return { label: metricTitle(name), value: metricValue(name, last), note, rank: last, better, headline: true };
  };
  const memoryFact = (run) => {
    const device = run.device_peak !== null;
    const host = run.host_peak !== null;
    const rank = device ? run.device_peak : run.host_peak;
    const note = device ? "device" + (host ? "; host " + bytes(run.host_peak) : "") : host && "of the process, in host memory";
    return { label: "Peak memory", value: bytes(rank), note, rank, better: "lower", headline: true };
  };
  const factsOf = (run) => {
    const { start, end } = run;
    const word = (name) => text(start, name) ?? unknown;
    const facts = [];
    const add = (label, value, note = "", more = {}) => facts.push({ label, value, note, ...more });
    const lower = (rank) => ({ rank, better: "lower" });
    const evaluated = run.curves.eval.x.length > 0 || !run.metrics.length;
    if (evaluated) facts.push(metricFact("loss", run.curves.eval, "lower"));
    run.metrics.forEach((each) => facts.push(metricFact(each.name, each.curve, each.higher_is_better ? "higher" : "lower")));
    add("Training loss", fixed(run.train_loss, 4), run.train_loss !== null && run.window > 1 && "mean of the last " + run.window + " records",
      { ...lower(run.train_loss), headline: true });
    add(rateName(run), grouped(run.speed), run.speed !== null && "median", { rank: run.speed, better: "higher", headline: true });
    add("Time", duration(run.records > 1 ? run.seconds : undefined), run.sessions > 1 && "in " + run.sessions + " sessions", { headline: true });
    facts.push(memoryFact(run));
    const [states, full] = [number(start, "state_bytes"), number(start, "fp32_state_bytes")];
    add("Optimizer states", bytes(states), full > 0 && states < full && "instead of " + bytes(full) + " in fp32 (" + percent(states / full) + ")",
      { ...lower(states), headline: true });
    add("How it ended", endingOf(run)[0], text(end, "message"));
    const [asked, batch] = [number(start, "steps"), number(start, "batch_" + run.unit)];
    add("Steps", grouped(run.last_step),
      [asked !== undefined && "of " + grouped(asked), run.units > 0 && count(run.units) + " " + run.unit].filter(Boolean).join("; "));
    add("Skipped steps", grouped(run.skipped), run.skipped > 0 && "their gradients were not finite", lower(run.skipped));
    const unigram = number(start, "unigram_entropy");
    const loss = finite(run.curves.eval).pop();
    if (unigram !== undefined)
      add("Unigram entropy", fixed(unigram, 4), loss && "evaluation is " + fixed(Math.abs(unigram - loss[1]), 4) + (loss[1] < unigram ? " below it" : " above it"));
    const params = number(start, "params");
    add("Model", word("model"), params !== undefined && grouped(params) + " parameters", { rank: params });
    add("Optimizer", word("optimizer"), batch !== undefined && grouped(batch) + " " + run.unit + " a step");
    add("Compute", word("compute_dtype"), "master weights: " + word("master_weights"));
    if (text(start, "fp8") !== undefined) add("FP8", text(start, "fp8"));
    add("Device", word("device"));
    const ranks = number(start, "ranks");
    if (ranks !== undefined) add("Ranks", grouped(ranks), word("parallel"));
    const [sent, took, waited] = ["comm_bytes", "comm_seconds", "comm_waited"].map((name) => number(end, name));
    if (sent !== undefined)
      add("Communication", bytes(sent) + " a step", took > 0 && waited !== undefined &&
        page.significant(1e3 * took, 3) + " ms, of which " + percent(waited / took) + " not hidden by other work", lower(sent));
    if (text(start, "data") !== undefined) add("Data", text(start, "data"));
    else if (number(start, "train_bytes") !== undefined)
      add("Data", bytes(number(start, "train_bytes")) + " to train", bytes(number(start, "validation_bytes")) + " to evaluate");
    const overhead = number(end, "overhead");
    add("Trainer overhead", percent(overhead), overhead !== undefined && "outside forward, backward and step", lower(overhead));
    [["Evaluations", "evaluation_seconds"], ["Checkpoints", "checkpoint_seconds"]].forEach(([label, name]) => {
      const [seconds, all] = [number(end, name), number(end, "seconds")];
      add(label, duration(seconds), seconds !== undefined && all > 0 && percent(seconds / all) + " of the time");
    });
    const step = number(start, "resumed_from");
    add("Resumed from", text(start, "resumed_from") ?? (step === undefined ? "no" : "step " + grouped(step)));
    add("Began", date(run.began));
    add("Folder", run.path);
    return facts;
  };

  // The facts of all runs by rows: each run has every label, in the order in which the runs have them.
  const factRows = () => {
    const all = runs.map(factsOf);
    const rows = [];
    all.forEach((facts) => {
      let place = 0;  // after the row of the previous fact
      facts.forEach((fact) => {
        let at = rows.findIndex((row) => row.label === fact.label);
        if (at < 0) rows.splice(at = place, 0, { label: fact.label, headline: fact.headline, value: unknown, note: "" });
        place = at + 1;
      });
    });
    return rows.map((row) => all.map((facts) => facts.find((fact) => fact.label === row.label) || row));
  };
  // The fact with the best value, if values differ.
  const bestOf = (row) => {
    const ranked = row.filter((fact) => Number.isFinite(fact.rank) && fact.better);
    if (ranked.every((fact) => fact.rank === ranked[0].rank)) return undefined;
    return ranked.reduce((a, b) => ((b.better === "lower" ? b.rank < a.rank : b.rank > a.rank) ? b : a));
  };
  const factsList = (facts) => make("dl", "facts", facts.map((fact) =>
    make("div", "", make("dt", "", fact.label), make("dd", "", fact.value, fact.note && [" ", make("small", "", fact.note)]))));
  const comparison = () => {
    const rows = factRows();
    const shared = rows.filter((row) => !row[0].headline && row.every((fact) => fact.value === row[0].value && (fact.note || "") === (row[0].note || "")));
    const others = rows.filter((row) => !shared.includes(row)).map((row) => {
      const best = bestOf(row);
      return [row[0].label, ...row.map((fact) => ({ text: fact.value, note: fact.note, style: fact === best ? "best" : "" }))];
    });
    return [table("compare", runHeads(), others), shared.length && [quiet("The same in all runs:"), factsList(shared.map((row) => row[0]))]];
  };
  const summary = () => {
    if (!single) return comparison();
    const facts = factsOf(runs[0]);
    return [page.cards(...facts.filter((fact) => fact.headline).map((fact) => [fact.label, fact.value, fact.note])),
      factsList(facts.filter((fact) => !fact.headline))];
  };

  const header = () => {
    const [run] = runs;
    if (single) {
      const params = number(run.start, "params");
      const version = text(run.start, "octavo");
      const parts = [text(run.start, "model"), params !== undefined && count(params) + " parameters", text(run.start, "device"),
        run.began !== null && "began " + date(run.began), version !== undefined && "octavo " + version];
      page.header("Octavo training report", run.name, endingOf(run), [parts.filter(Boolean).join(" · ")]);
    } else {
      page.header("Octavo training report", "Comparison of " + runs.length + " runs", undefined,
        runs.map((each, i) => [make("span", runStyle(i), each.name), " "]));
    }
  };
  const notices = () => runs.flatMap((run) => {
    const name = single ? "" : run.name + ": ";
    const out = [];
    if (endingOf(run)[1] === "bad") {
      const why = text(run.end, "message") ?? "the last warnings and metrics.jsonl say more";
      const bad = notice(name + "the run " + text(run.end, "reason") + " at step " + grouped(number(run.end, "step")) + "; " + why + ".");
      bad.classList.add("bad");
      out.push(bad);
    }
    if (run.warning.all) {
      const link = make("a", "", "All");
      link.href = "#warnings";
      const last = run.warning.last[run.warning.last.length - 1];
      out.push(notice(name + counted(run.warning.all, "warning") + ". The last: " + (text(last, "message") ?? ""), " ", link));
    }
    if (run.bad_lines) out.push(notice(name + counted(run.bad_lines, "line") + " of metrics.jsonl skipped: torn, or not a record."));
    if (!run.records) out.push(notice(name + "metrics.jsonl has no record yet."));
    return out;
  });

  const owners = [
    ["params", "the model's weights"],
    ["fp8", "their FP8 codes, and what scales are made of"],
    ["grads", "gradients, with what accumulates them"],
    ["states", "the optimizer's states"],
    ["master", "the bits that bf16 weights lack"],
    ["activations", "kept for the backward pass"],
    ["workspace", "of single operations"],
    ["communication", "of ranks, beside what they communicate"],
  ];
  const memory = () => {
    const owned = (run, owner) => {
      const value = number(run.memory, "owners", owner);
      return value >= 0 ? value : undefined;
    };
    const total = (run) => owners.reduce((sum, [owner]) => sum + (owned(run, owner) || 0), 0);
    const peak = (run) => number(run.memory, "device_peak");
    // Returns the bytes that offload keeps in host memory.
    const hosted = (run) => {
      const parts = ["states", "master", "copies"].map((name) => number(run.memory, "host", name)).filter(Number.isFinite);
      return parts.length ? parts.reduce((a, b) => a + b) : undefined;
    };
    const scale = Math.max(...runs.map(total));
    if (!(scale > 0)) return [];
    const bars = runs.filter((run) => total(run) > 0).map((run) => make("div", "bar-row", !single && make("span", "bar-name", run.name),
      bar(run.name + ": memory by owner", owners.map(([owner]) => [owner, "o-" + owner, owned(run, owner)]), scale),
      make("span", "bar-total", bytes(total(run)))));
    // Not every run has these owners: they need several ranks, or FP8 matmuls.
    const shown = owners.filter(([owner]) => !["communication", "fp8"].includes(owner) || runs.some((run) => owned(run, owner) !== undefined));
    const row = (name, style, valueOf, ...more) =>
      [{ text: name, style }, ...runs.map((run) => ({ text: bytes(valueOf(run)), style: "num " + (style === "sum" ? style : "") })), ...(single ? more : [])];
    const rows = shown.map(([owner, meaning]) =>
      row(owner, "owner o-" + owner, (run) => owned(run, owner), num(percent((owned(runs[0], owner) || 0) / total(runs[0]))), meaning));
    rows.push(row("together", "sum", total, { text: "100%", style: "num sum" }, ""));
    const device = runs.some((run) => peak(run) !== undefined);
    if (device) rows.push(row("device peak", "", peak, "", "as the device's allocator counts it"));
    if (runs.some((run) => hosted(run) !== undefined))
      rows.push(row("in host memory", "", hosted, "", "offloaded states and master bits, copies of weights and gradients"));
    return [make("div", single ? "bars" : "bars named", bars),
      table("owners", single ? ["owner", num("bytes"), num("share"), "what it is"] : runHeads(" num"), rows),
      quiet("These are the tensors at the peak of one training step. ", device
        ? '"Peak memory" above is the most on the device during the run, evaluations included.'
        : '"Peak memory" above is the most of the process during the run: its libraries and data count, too.')];
  };

  // Reference texts next to recognized texts, for the last evaluation that has examples.
  const words = (all, tag) => all.map(([word, differs], i) => [i > 0 && " ", differs ? make(tag, "", word) : word]);
  const examples = () => runs.map(({ examples: found }, i) => found && [runHeading(i),
    quiet("The evaluation of step " + grouped(found.step) + ". Wavy lines: words of the reference that were transcribed differently. Straight " +
      "lines: transcribed words that are not in the reference."),
    table("examples", ["clip", "reference", "transcribed", num("errors", "of words")], found.rows.map((row) =>
      [row.name ?? unknown, words(row.reference, "del"), words(row.hypothesis, "ins"), num(row.errors + " of " + row.words)]))]);

  // Draws the records of one kind, run by run. Only the last ones of a long list are shown.
  const listed = (kind, draw) => runs.map((run, i) => {
    const { all, last } = run[kind];
    return all > 0 && [runHeading(i), all > last.length && quiet("The last " + last.length + " of " + all + "."), draw(last, run)];
  });
  const mostSample = 20000;  // characters
  const samples = () => listed("sample", (records) => make("div", "samples", records.map((record) => {
    const prompt = text(record, "prompt") ?? "";
    const all = text(record, "text") ?? "";
    const rest = all.startsWith(prompt) ? all.slice(prompt.length) : all;
    return make("figure", "sample", make("figcaption", "", "step " + grouped(number(record, "step"))),
      make("pre", "", make("b", "", prompt), rest.length > mostSample ? rest.slice(0, mostSample) + "…" : rest));
  })));
  const step = (record) => num(grouped(number(record, "step")));
  const recordTable = (kind, columns) => listed(kind, (records, run) => {
    const shown = columns(run);
    return table("", [num("step"), ...shown.map(([head]) => head)], records.map((record) => [step(record), ...shown.map(([, value]) => value(record))]));
  });
  const message = (name) => () => [[name, (record) => text(record, "message") ?? unknown]];
  const evaluations = (run) => {
    const bits = entropyUnit(run, "bits");
    const loss = run.curves.eval.x.length > 0 || !run.metrics.length;
    return [
      loss && [num("loss"), (record) => num(fixed(number(record, "loss"), 4))],
      bits && [num(bits), (record) => num(fixed(number(record, "loss") / Math.LN2, 4))],
      ...run.metrics.map(({ name }) => [num(metricLabel(name)), (record) => num(metricValue(name, number(record, name)))]),
      [num(run.unit), (record) => num(grouped(number(record, run.unit)))],
      [num("time"), (record) => num(duration(number(record, "seconds")))],
      [num("stage"), (record) => num(grouped(number(record, "stage")))],
    ].filter(Boolean);
  };
  const stages = () => [
    [num("stage"), (record) => num(grouped(number(record, "stage")))],
    [num("samples"), (record) => num(number(record, "samples") === -1 ? "all" : grouped(number(record, "samples")))],
  ];
  const checkpoints = () => [
    ["folder", (record) => ({ text: text(record, "path") ?? unknown, style: "code" })],
    [num("size"), (record) => num(bytes(number(record, "bytes")))],
    [num("time"), (record) => num(duration(number(record, "seconds")))],
  ];

  // A table per section of the config (model, data, training), and one for keys outside of a section.
  const settingsBySection = (settings) => {
    const tables = [];
    settings.forEach(([key, value]) => {
      const dot = key.indexOf(".");
      const name = dot < 0 ? "run" : key.slice(0, dot);
      if (!tables.length || tables[tables.length - 1].name !== name) tables.push({ name, rows: [] });
      tables[tables.length - 1].rows.push([key.slice(dot + 1), value]);
    });
    return tables.length > 0 && make("div", "columns", tables.map(({ name, rows }) => table("code", [name, ""], rows)));
  };
  const settings = () => {
    if (single) return settingsBySection(runs[0].settings);
    const values = runs.map((run) => new Map(run.settings));
    const keys = [...new Set(runs.flatMap((run) => run.settings.map(([key]) => key)))];
    const rows = keys.map((key) => [key, ...values.map((each) => each.get(key) ?? unknown)]);
    const differs = ([, first, ...others]) => others.some((value) => value !== first);
    const same = rows.filter((row) => !differs(row));
    const differing = rows.filter(differs).map(([key, first, ...others]) =>
      [key, first, ...others.map((value) => ({ text: value, style: value === first ? "" : "differs" }))]);
    return [
      differing.length ? [quiet("Marked where a run differs from the first."), table("compare code", runHeads(), differing)] : quiet("All settings are the same."),
      same.length > 0 && make("details", "", make("summary", "", "Settings that all runs share"), settingsBySection(same)),
    ];
  };

  header();
  page.main.append(...notices());
  page.section("summary", "Summary", summary());
  const curves = reportCurves({ metricTitle, entropyUnit, rateName });
  page.section("curves", "Curves", curves.nodes);
  page.section("memory", "Memory by owner", memory());
  page.section("examples", "Examples", examples());
  page.section("samples", "Samples", samples());
  page.section("settings", single ? "Settings" : "Settings that differ", settings());
  page.section("warnings", "Warnings", recordTable("warning", message("message")));
  page.section("changes", "Changed when the run went on", recordTable("change", message("change")));
  page.section("evaluations", "Evaluations", recordTable("eval", evaluations));
  page.section("stages", "Stages", recordTable("stage", stages));
  page.section("checkpoints", "Checkpoints", recordTable("checkpoint", checkpoints));
  page.footer("Made by octavo report from config.yaml and metrics.jsonl. This page needs no network.");
  curves.drawAll();
})();
