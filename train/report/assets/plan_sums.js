// The arithmetic of a plan's page: what a run would need with other rows, lengths, formats or GPUs, from the plans that were
// made (page.h describes the data). A choice: length, checkpointing, state, gpu, num_gpus, zero.
// SPDX-License-Identifier: MIT
"use strict";
const planSums = (data) => {
  const now = data.now || {};
  const mostRows = 1000000;

  // A series: the plans of one length, with or without checkpointing, by rows.
  const seriesOf = (choice) => {
    const byRows = new Map();
    data.points.filter((each) => each.length === choice.length && each.checkpointing === choice.checkpointing)
      .forEach((each) => byRows.set(each.rows, each));
    return [...byRows.values()].sort((a, b) => a.rows - b.rows);
  };
  // On the line through the two nearest plans; a lone plan's line goes through zero.
  const along = (series, rows, key) => {
    if (series.length === 1) return series[0][key] * rows / series[0].rows;
    let i = 0;
    while (i + 2 < series.length && series[i + 1].rows < rows) i += 1;
    const [a, b] = [series[i], series[i + 1]];
    return Math.max(0, a[key] + (b[key] - a[key]) * (rows - a.rows) / (b.rows - a.rows));
  };
  const nearest = (series, rows) => series.reduce((a, b) => (Math.abs(b.rows - rows) < Math.abs(a.rows - rows) ? b : a));
  const planned = data.gpus.find((each) => each.key === now.gpu) || data.gpus[0];
  // Bytes by the names of the plan's table. What has no rule of its own stays as it was planned.
  const ownersOf = (series, choice, rows) => {
    const point = nearest(series, rows);
    const shards = choice.zero === "zero1" || choice.zero === "zero2" ? choice.num_gpus : 1;
    const out = new Map(data.memory_rows);
    if (choice.num_gpus === 1 && out.has("communication")) out.set("communication", 0);
    out.set("weights", point.weights);
    out.set("gradients", point.gradients / (choice.zero === "zero2" ? shards : 1));
    out.set("optimizer states", choice.state.states / shards);
    out.set("master bits", choice.state.master / shards);
    out.set("activations", along(series, rows, "activations"));
    out.set("workspace", point.workspace);
    out.set("rounding", point.rounding);
    out.set("fragmentation", along(series, rows, "fragmentation"));
    if (out.has("evaluation")) out.set("evaluation", along(series, rows, "evaluation"));
    out.set("CUDA context", choice.gpu.context);
    return out;
  };
  const sum = (owners) => [...owners.values()].reduce((a, b) => a + b, 0);
  const largest = (series, choice) => {
    const fits = (rows) => sum(ownersOf(series, choice, rows)) <= choice.gpu.memory;
    let [low, high] = [0, 1];  // low fits, high does not
    while (high <= mostRows && fits(high)) [low, high] = [high, high * 2];
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (fits(middle)) low = middle;
      else high = middle;
    }
    return low;
  };
  const slowdown = (gpu) => (gpu === planned ? 1 : Math.max(planned.bandwidth / gpu.bandwidth, planned.bf16 / gpu.bf16));

  return { mostRows, planned, seriesOf, along, nearest, ownersOf, sum, largest, slowdown };
};
