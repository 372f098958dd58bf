// The report's curves: a figure with a Chart for each kind of curve that the runs have. Colours come from the style, so that light
// and dark each have theirs. When all are drawn, <html data-charts> says how many there are.
// SPDX-License-Identifier: MIT
"use strict";
const reportCurves = ({ metricTitle, entropyUnit, rateName }) => {
  const { make } = page;
  const root = document.documentElement;
  const records = page.data.runs;
  const runs = records.map((run) => ({ ...run.curves, name: run.name, metrics: run.metrics, unigram: page.number(run.start, "unigram_entropy") }));
  const single = runs.length === 1;
  const colors = 8;
  let charts = [];

  const color = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const runColor = (run) => color("run-" + (run % colors));
  const points = (curve) => curve.x.map((x, i) => ({ x, y: curve.y[i] }));
  const hasNumbers = (curve) => curve && curve.y.some((y) => y !== null);

  const short = (value) => page.significant(value, 3);
  const count = page.scaled(page.countUnits, short);
  const bytes = page.scaled(page.byteUnits, short);
  const plain = (value) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(1).replace(".0e", "e") : String(Number(value.toPrecision(4))));
  const percent = (value) => Number((100 * value).toFixed(2)) + "%";

  // A line of a chart. `look`: width, alpha (two hexadecimal digits), dash, dots, fill.
  const line = (label, curve, base, look = {}) => ({
    label,
    data: points(curve),
    borderColor: base + (look.alpha || ""),
    backgroundColor: base + (look.fill ? "14" : look.alpha || ""),
    borderWidth: look.width || 1.8,
    borderDash: look.dash || [],
    pointRadius: look.dots || curve.x.length === 1 ? (single ? 3 : 2.2) : 0,
    pointHoverRadius: 4,
    pointHitRadius: 6,
    fill: look.fill || false,
    order: look.order || 0,
    run: look.run,
    faint: look.faint || false,
  });

  const lossLines = () => {
    const lines = [];
    runs.forEach((run, i) => {
      const mean = run.mean || run.train;
      const evaluated = hasNumbers(run.eval);
      if (single) {
        if (hasNumbers(run.mean)) lines.push(line("each record", run.train, runColor(i), { width: 1, alpha: "60", order: 3, run: 0, faint: true }));
        if (hasNumbers(mean)) lines.push(line("training", mean, runColor(i), { width: 2.2, order: 2, run: 0 }));
        if (evaluated) lines.push(line("evaluation", run.eval, runColor(1), { width: 2.2, dots: true, order: 1 }));
        return;
      }
      const faint = { width: 1.3, alpha: "70", order: 2, run: i, faint: true };
      if (hasNumbers(mean)) lines.push(line(run.name + ", training", mean, runColor(i), evaluated ? faint : { run: i }));
      if (evaluated) lines.push(line(run.name, run.eval, runColor(i), { width: 2.2, dots: true, order: 1, run: i }));
    });
    // Runs over the same data share one line.
    const seen = [];
    const last = Math.max(...runs.flatMap((run) => [...run.train.x, ...run.eval.x]), 0);
    runs.forEach((run, i) => {
      if (run.unigram === undefined || seen.some((each) => Math.abs(each - run.unigram) < 1e-4)) return;
      seen.push(run.unigram);
      const shared = runs.every((each) => each.unigram === undefined || Math.abs(each.unigram - run.unigram) < 1e-4);
      const name = shared ? "unigram entropy" : "unigram entropy, " + run.name;
      const flat = { x: [0, last], y: [run.unigram, run.unigram] };
      lines.push(line(name, flat, shared ? color("quiet") : runColor(i), { width: 1.4, dash: [6, 5], order: 4 }));
    });
    return lines;
  };

  const memoryLines = () => {
    const lines = [];
    runs.forEach((run, i) => {
      const device = hasNumbers(run.device_memory);
      if (device) lines.push(line(single ? "device" : run.name, run.device_memory, runColor(i), { fill: single ? "origin" : false, run: i }));
      if (!hasNumbers(run.host_memory)) return;
      if (single) lines.push(line("host", run.host_memory, runColor(device ? 1 : 0)));
      else if (device) lines.push(line(run.name + ", host", run.host_memory, runColor(i), { dash: [3, 3], width: 1.3, run: i, faint: true }));
      else lines.push(line(run.name, run.host_memory, runColor(i)));
    });
    return lines;
  };

  const lossNote = () => {
    const unit = entropyUnit(records[0], "nats");
    const lines = single ? "the strong line is a running mean of about " + records[0].window + " records"
      : "with dots: evaluation; faint: training, running mean";
    return [unit && "in " + unit, (!single || records[0].window > 1) && lines].filter(Boolean).join("; ");
  };
  // Each metric of the evaluations other than the loss has its own chart.
  const metricKind = (name) => {
    const metricOf = (run) => run.metrics.find((each) => each.name === name) || {};
    const higher = runs.map(metricOf).find((each) => each.name).higher_is_better;
    return { id: "metric", metric: name, title: metricTitle(name), note: higher ? "higher is better" : "lower is better",
      curves: (run) => [metricOf(run).curve], look: { width: 2.2, dots: true }, ...(name === "wer" ? { format: percent, zero: true } : { format: plain }) };
  };
  const sameUnit = records.every((run) => run.unit === records[0].unit);
  const filled = { fill: single ? "origin" : false };
  const kinds = [
    { id: "loss", title: "Loss", note: lossNote(), curves: (run) => [run.train, run.eval], lines: lossLines, format: plain },
    ...[...new Set(runs.flatMap((run) => run.metrics.map((each) => each.name)))].sort().map(metricKind),
    { id: "difference", title: "Evaluation loss, difference", note: "to " + runs[0].name + "; below zero is better",
      curves: (run) => [run.difference], look: { dots: true }, format: plain, zero: true, named: true },
    { id: "lr", title: "Learning rate", curves: (run) => [run.lr], look: filled, format: plain, zero: true },
    { id: "grad_norm", title: "Gradient norm", curves: (run) => [run.grad_norm], look: { width: 1.2 }, format: plain, zero: true },
    { id: "throughput", title: sameUnit ? rateName(records[0]) : "Throughput", curves: (run) => [run.throughput], look: { width: 1.4 }, format: count,
      zero: true },
    { id: "memory", title: "Memory", note: !single && runs.some((run) => hasNumbers(run.device_memory)) && "dashed: the host's",
      curves: (run) => [run.device_memory, run.host_memory], lines: memoryLines, format: bytes, zero: true },
    { id: "loss_scale", title: "Loss scale", curves: (run) => [run.loss_scale], format: count, log: true },
  ].filter((kind) => runs.some((run) => kind.curves(run).some(hasNumbers)));
  const linesOf = (kind) => (kind.lines ? kind.lines()
    : runs.flatMap((run, i) => kind.curves(run).filter(hasNumbers).map((curve) => line(run.name, curve, runColor(i), kind.look))));

  // Faint lines have no entry of their own in the legend: they come and go with their run's.
  const legendLabels = (chart) =>
    Chart.defaults.plugins.legend.labels.generateLabels(chart)
      .map((item) => ({ item, set: chart.data.datasets[item.datasetIndex] }))
      .filter(({ set }) => !set.faint)
      .map(({ item, set }) => ({ ...item, pointStyle: "line", strokeStyle: set.borderColor, lineWidth: 2.2, lineDash: set.borderDash }));
  const toggleRun = (event, item, legend) => {
    const chart = legend.chart;
    const run = chart.data.datasets[item.datasetIndex].run;
    const visible = !chart.isDatasetVisible(item.datasetIndex);
    chart.data.datasets.forEach((set, i) => {
      if (i === item.datasetIndex || (run !== undefined && set.run === run)) chart.setDatasetVisibility(i, visible);
    });
    chart.update();
  };

  // Chart.js puts the legend right above the highest tick's label.
  const legendGap = {
    id: "legendGap",
    beforeInit(chart) {
      const fit = chart.legend.fit;
      chart.legend.fit = function fitWithGap() {
        fit.call(this);
        this.height += 10;
      };
    },
  };

  // The range of what lies behind the first tenth of the steps.
  const lateRange = (lines) => {
    const from = Math.max(...lines.flatMap((each) => each.data.map((point) => point.x))) / 10;
    const values = lines.filter((each) => !each.borderDash.length).flatMap((each) => each.data)
      .filter((point) => point.x >= from && point.y !== null).map((point) => point.y);
    if (!values.length) return {};
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const margin = (high - low || 1) * 0.05;
    return { min: low - margin, max: high + margin };
  };

  const select = make("select", "", [["all", "whole range"], ["late", "without the first tenth"], ["log", "log scale"]].map(([value, text]) =>
    Object.assign(make("option", "", text), { value })));
  select.id = "loss-view";
  select.setAttribute("aria-label", "Range of the loss");

  const draw = ({ kind, canvas }) => {
    const lines = linesOf(kind);
    const view = kind.id === "loss" ? select.value : "all";
    const text = { color: color("quiet"), font: { family: getComputedStyle(document.body).fontFamily, size: 12 } };
    const axis = { border: { display: false }, grid: { color: color("grid"), drawBorder: false, tickLength: 0 } };
    return new Chart(canvas, {
      type: "line",
      data: { datasets: lines },
      plugins: [legendGap],
      options: {
        animation: false,
        parsing: false,
        normalized: true,
        responsive: true,
        maintainAspectRatio: false,
        interaction: { mode: "nearest", axis: "x", intersect: false },
        scales: {
          x: { type: "linear", min: 0, ...axis, grid: { display: false, drawBorder: false },
            ticks: { ...text, padding: 6, maxRotation: 0, maxTicksLimit: 9, callback: (value) => count(value) } },
          y: { type: kind.log || view === "log" ? "logarithmic" : "linear", beginAtZero: Boolean(kind.zero), ...axis,
            ...(view === "late" ? lateRange(lines) : {}),
            ticks: { ...text, padding: 8, maxTicksLimit: 7, includeBounds: false, callback: (value) => kind.format(value) } },
        },
        plugins: {
          legend: { display: lines.length > 1 || Boolean(kind.named), align: "start", onClick: toggleRun,
            labels: { ...text, color: color("ink"), usePointStyle: true, pointStyleWidth: 22, padding: 14, generateLabels: legendLabels } },
          tooltip: { backgroundColor: color("ink"), titleColor: color("page"), bodyColor: color("page"), padding: 10, boxPadding: 4,
            callbacks: {
              title: (items) => (items.length ? "step " + items[0].parsed.x.toLocaleString("en") : ""),
              label: (item) => item.dataset.label + ": " + kind.format(item.parsed.y),
            } },
        },
      },
    });
  };

  const figure = (kind) => {
    const canvas = make("canvas");
    Object.assign(canvas.dataset, { chart: kind.id, ...(kind.metric === undefined ? {} : { metric: kind.metric }) });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", kind.title + " against steps");
    const loss = kind.id === "loss";
    const caption = make("figcaption", "", make("strong", "", kind.title), kind.note && [" ", make("small", "", kind.note)], loss && select);
    return { kind, canvas, node: make("figure", loss && "wide", caption, make("div", "plot", canvas)) };
  };
  const figures = typeof Chart === "undefined" ? [] : kinds.map(figure);
  const drawAll = () => {
    charts.forEach((chart) => chart.destroy());
    charts = figures.map(draw);
    root.dataset.charts = String(charts.length);
  };
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  select.addEventListener("change", drawAll);

  // A chart needs its canvas's size: drawAll is called once the nodes are on the page.
  const nodes = figures.length ? [make("div", "charts", figures.map((each) => each.node)),
    page.quiet("Curves are against steps. Of one with more than " + page.data.most_points + " records, the lowest and the highest of each of equal " +
      "parts are drawn, so no peak is lost; a break in a line is a number that was not finite. metrics.jsonl has every record.")]
    : [kinds.length ? page.notice("This build of octavo has no curves: they need Chart.js (Debian's libjs-chart.js) when octavo is built. Everything " +
      "else on this page is complete.") : page.quiet("No training record has been logged yet, so there are no curves.")];
  return { nodes, drawAll };
};
