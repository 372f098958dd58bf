// Draws the report's curves: one Chart per canvas that names one, from the JSON in #data. Colours come from the style,
// so that light and dark each have theirs. When all is drawn, <html data-charts> says how many charts there are.
// SPDX-License-Identifier: MIT
"use strict";
(() => {
  const root = document.documentElement;
  const runs = JSON.parse(document.getElementById("data").textContent).runs;
  const single = runs.length === 1;
  const colors = 8;
  let charts = [];

  const color = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const runColor = (run) => color("run-" + (run % colors));
  const points = (curve) => curve.x.map((x, i) => ({ x, y: curve.y[i] }));
  const hasNumbers = (curve) => curve && curve.y.some((y) => y !== null);

  const scaled = (value, units) => {
    let unit = 0;
    while (Math.abs(value) >= 999.5 && unit + 1 < units.length) {
      value /= 1000;
      unit += 1;
    }
    return String(Number(value.toPrecision(3))) + units[unit];
  };
  const count = (value) => scaled(value, ["", "k", "M", "G", "T"]);
  const bytes = (value) => scaled(value, [" B", " kB", " MB", " GB", " TB", " PB"]);
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
      if (run.unigram === null || seen.some((each) => Math.abs(each - run.unigram) < 1e-4)) return;
      seen.push(run.unigram);
      const shared = runs.every((each) => each.unigram === null || Math.abs(each.unigram - run.unigram) < 1e-4);
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

  const simpleLines = (key, look) => () =>
    runs.map((run, i) => [run, i]).filter(([run]) => hasNumbers(run[key])).map(([run, i]) => line(run.name, run[key], runColor(i), look));

  const kinds = {
    loss: { lines: lossLines, format: plain },
    difference: { lines: simpleLines("difference", { dots: true }), format: plain, zero: true, named: true },
    lr: { lines: simpleLines("lr", { fill: single ? "origin" : false }), format: plain, zero: true },
    grad_norm: { lines: simpleLines("grad_norm", { width: 1.2 }), format: plain, zero: true },
    throughput: { lines: simpleLines("throughput", { width: 1.4 }), format: count, zero: true },
    memory: { lines: memoryLines, format: bytes, zero: true },
    loss_scale: { lines: simpleLines("loss_scale", {}), format: count, log: true },
  };

  // What evaluations give besides the loss: a chart each.
  const metricOf = (run, name) => (run.metrics.find((each) => each.name === name) || {}).curve;
  const metricKind = (name) => ({
    lines: () => runs.map((run, i) => [run, i]).filter(([run]) => hasNumbers(metricOf(run, name)))
      .map(([run, i]) => line(run.name, metricOf(run, name), runColor(i), { width: 2.2, dots: true })),
    ...(name === "wer" ? { format: percent, zero: true } : { format: plain }),
  });

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

  const draw = (canvas) => {
    const kind = canvas.dataset.metric === undefined ? kinds[canvas.dataset.chart] : metricKind(canvas.dataset.metric);
    const lines = kind.lines();
    const select = document.getElementById("loss-view");
    const view = canvas.dataset.chart === "loss" && select ? select.value : "all";
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

  const drawAll = () => {
    charts.forEach((chart) => chart.destroy());
    charts = [];
    const canvases = typeof Chart === "undefined" ? [] : [...document.querySelectorAll("canvas[data-chart]")];
    root.dataset.charts = String(canvases.length);  // shows the figures: a chart needs its canvas's size
    canvases.forEach((canvas) => charts.push(draw(canvas)));
    root.dataset.charts = String(charts.length);
  };

  drawAll();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  const view = document.getElementById("loss-view");
  if (view) view.addEventListener("change", drawAll);
})();
