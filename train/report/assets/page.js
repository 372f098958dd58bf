// Defines what all pages use: their data, numbers as text, and elements such as tables, cards and bars. Texts become text nodes,
// so no string of the data becomes markup.
// SPDX-License-Identifier: MIT
"use strict";
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.querySelector("main");

  // Returns a member along a path of names. Members of an unexpected type count as missing.
  const member = (record, ...path) =>
    path.reduce((at, name) => (at && typeof at === "object" && Object.hasOwn(at, name) ? at[name] : undefined), record);
  const typed = (type) => (...path) => {
    const value = member(...path);
    return typeof value === type ? value : undefined;
  };
  const number = typed("number");
  const text = typed("string");
  const list = (...path) => [member(...path)].filter(Array.isArray).flat();

  // Writes numbers as train/base/numbers.h does; a dash if the value is not a number.
  const unknown = "–";
  const format = (write) => (value, ...more) => (Number.isFinite(value) ? write(value, ...more) : unknown);
  const fixed = format((value, digits) => value.toFixed(digits));
  const significant = format((value, digits) => String(Number(value.toPrecision(digits))));
  const grouped = format((value) => Math.round(value).toLocaleString("en"));
  const percent = format((value) => fixed(100 * value, Math.abs(value) < 0.1 ? 2 : 1) + "%");
  const byteUnits = [" B", " kB", " MB", " GB", " TB", " PB"];
  const countUnits = ["", "k", "M", "G", "T"];
  const threeDigits = (value, unit) => fixed(value, unit === 0 || Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2);
  const scaled = (units, write = threeDigits) => format((value) => {
    let unit = 0;
    while (Math.abs(value) >= 999.5 && unit + 1 < units.length) {
      value /= 1000;
      unit += 1;
    }
    return write(value, unit) + units[unit];
  });
  const bytes = scaled(byteUnits);
  const count = scaled(countUnits);
  const stepTime = format((seconds) =>
    (seconds < 0.9995 ? significant(1e3 * seconds, 3) + " ms" : (seconds < 99.95 ? significant(seconds, 3) : grouped(seconds)) + " s"));
  const duration = format((seconds) => {
    if (seconds < 0 || seconds > 1e12) return unknown;
    if (seconds < 10) return fixed(seconds, 1) + " s";
    const all = Math.round(seconds);
    const minutes = Math.floor(all / 60);
    const hours = Math.floor(minutes / 60);
    const two = (value) => String(value).padStart(2, "0");
    if (all < 60) return all + " s";
    if (all < 3600) return minutes + " min " + two(all % 60) + " s";
    return hours < 48 ? hours + " h " + two(minutes % 60) + " min" : Math.floor(hours / 24) + " d " + two(hours % 24) + " h";
  });
  const date = format((seconds) =>
    (Math.abs(seconds) > 2e11 ? unknown : new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ") + " UTC"));

  // An element. `inside` has texts, nodes and lists of them; control characters become their pictures.
  const visible = (value) =>
    value.replace(/[\0-\x08\x0b-\x1f\x7f]/g, (each) => String.fromCharCode(each === "\x7f" ? 0x2421 : 0x2400 + each.charCodeAt(0)));
  const make = (tag, style, ...inside) => {
    const out = document.createElement(tag);
    if (style) out.className = style;
    out.append(...inside.flat(9).filter(Boolean).map((each) => (each instanceof Node ? each : visible(String(each)))));
    return out;
  };
  const small = (note) => note && [" ", make("small", "", note)];
  const quiet = (...inside) => make("p", "quiet", ...inside);
  const notice = (...inside) => make("p", "notice", ...inside);

  // A cell is a text, a list of nodes, or {text, note, style}. The first of a row names the row.
  const num = (value, note) => ({ text: value, note, style: "num" });
  const cell = (tag, scope) => (each) => {
    const { text: value, note, style } = typeof each === "string" || Array.isArray(each) ? { text: each } : each;
    const out = make(tag, style, value, small(note));
    if (scope) out.scope = scope;
    return out;
  };
  const table = (style, head, rows) => {
    const row = ([first, ...others]) => make("tr", "", cell("th", "row")(first), others.map(cell("td")));
    return make("div", "scroll", make("table", style, make("thead", "", make("tr", "", head.map(cell("th", "col")))), make("tbody", "", rows.map(row))));
  };

  // Tiles: [name, value, note, style and id of the value].
  const cards = (...all) => make("dl", "cards", all.map(([name, value, note, style, id]) => {
    const shown = make("dd", style, value);
    if (id) shown.id = id;
    return make("div", "card", make("dt", "", name), shown, note && make("dd", "note", note));
  }));

  // A stacked bar of [name, style, bytes]. `scale` is the number of bytes of its full width, `limit` that of a line in it. A part
  // has a label where that fits into the narrowest bar that shows labels (page.css), which has 570 pixels.
  const width = (value, scale) => Math.min(100, 100 * value / scale).toFixed(3) + "%";
  const bar = (label, parts, scale, limit) => {
    const out = make("div", "bar", parts.filter((each) => each[2] > 0).map(([name, style, value]) => {
      const shown = name + " " + bytes(value);
      const part = make("span", style, 570 * value / scale >= 8 * shown.length + 12 && make("b", "", shown));
      part.title = name + ": " + bytes(value);
      part.style.width = width(value, scale);
      return part;
    }));
    out.setAttribute("role", "img");
    out.setAttribute("aria-label", visible(label));
    if (limit < scale) {
      const line = make("i", "limit");
      line.style.left = width(limit, scale);
      out.append(line);
    }
    return out;
  };
  // A cell with a bar.
  const meter = (value, most, style = "") => {
    const out = make("span", style);
    out.style.width = width(value, most);
    return { text: [out], style: "meter " + style };
  };

  // The parts of the page, in order. A section without content is omitted.
  const header = (eyebrow, title, badge, subtitle) =>
    main.append(make("header", "", make("p", "eyebrow", eyebrow), make("h1", "", title, badge && [" ", make("span", "badge " + badge[1], badge[0])]),
      subtitle && make("p", "subtitle", subtitle)));
  const section = (id, heading, ...inside) => {
    if (!inside.flat(9).some(Boolean)) return;
    const out = make("section", "", make("h2", "", heading), ...inside);
    out.id = id;
    main.append(out);
  };
  const footer = (...inside) => main.append(make("footer", "quiet", ...inside));

  return { data, main, number, text, list, unknown, fixed, significant, grouped, percent, byteUnits, countUnits, scaled, bytes, count, stepTime, duration, date, make, quiet,
    notice, num, table, cards, bar, meter, header, section, footer };
})();
