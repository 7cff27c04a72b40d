"use strict";
const at = (id) => document.getElementById(id);
const NS = "http://www.w3.org/2000/svg";
const finite = (x) => x !== null && x !== undefined && Number.isFinite(x);
const whole = (n) => Math.round(n).toLocaleString("en");

function shown(x, digits = 4) {
  if (!finite(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  const text = size !== 0 && (size < 1e-3 || size >= 1e7) ? x.toExponential(2) : size >= 1000 ? whole(x) : x.toPrecision(digits);
  return text.replaceAll("-", "\u2212");
}

function made(name, text, attributes) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const key in attributes || {}) element.setAttribute(key, attributes[key]);
  return element;
}

function drawn(svg, name, attributes, text) {
  const element = document.createElementNS(NS, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  svg.append(element);
  return element;
}

function path(xs, ys, x, y) {
  let text = "", pen = "M";
  xs.forEach((value, i) => {
    if (!finite(ys[i])) { pen = "M"; return; }
    text += `${pen}${x(value).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
    pen = "L";
  });
  return text;
}

function band(xs, low, high, x, y) {
  const ends = xs.map((_, i) => i).filter((i) => finite(low[i]) && finite(high[i]));
  if (!ends.length) return "";
  const side = (values, order) => order.map((i) => `${x(xs[i]).toFixed(1)} ${y(values[i]).toFixed(1)}`).join("L");
  return `M${side(high, ends)}L${side(low, [...ends].reverse())}Z`;
}

/* A chart of lines over the rows. Its scale is that of the values, and of whatever else must be seen. */
function chart(svg, rows, lines, { see = [], aim, changes = [], width = 400, height = 150, from, to } = {}) {
  svg.replaceChildren();
  const values = [...lines.flatMap((line) => line.values), ...see].filter(finite);
  if (rows.length < 2 || !values.length) return;
  const left = 46, right = width - 8, top = 8, bottom = height - 20;
  let low = from ?? Math.min(...values), high = to ?? Math.max(...values);
  if (low === high) { low -= Math.abs(low) / 10 || 1; high += Math.abs(high) / 10 || 1; }
  const first = rows[0], last = rows[rows.length - 1];
  const x = (v) => left + (right - left) * (v - first) / (last - first || 1);
  const y = (v) => bottom - (bottom - top) * (v - low) / (high - low);
  for (const v of [low, (low + high) / 2, high]) {
    drawn(svg, "line", { class: "grid", x1: left, x2: right, y1: y(v), y2: y(v) });
    drawn(svg, "text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, shown(v, 3));
  }
  drawn(svg, "text", { x: left, y: height - 4 }, `row ${whole(first)}`);
  drawn(svg, "text", { x: right, y: height - 4, "text-anchor": "end" }, whole(last));
  if (finite(aim)) drawn(svg, "line", { class: "aim", x1: left, x2: right, y1: y(aim), y2: y(aim) });
  for (const row of changes) {
    if (row >= first && row <= last) drawn(svg, "line", { class: "change", x1: x(row), x2: x(row), y1: top, y2: bottom });
  }
  for (const line of lines) drawn(svg, "path", { class: `line ${line.css || ""}`, d: path(rows, line.values, x, y) });
}

/* The small picture of one coefficient: its interval as a band, and zero if it is near. */
function spark(rows, mean, low, high, changes) {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("viewBox", "0 0 240 36");
  svg.setAttribute("aria-hidden", "true");
  const half = Math.floor(mean.length / 2);  /* the scale is that of the later half: early intervals are wide */
  const late = [...mean.slice(half), ...low.slice(half), ...high.slice(half)].filter(finite);
  if (rows.length < 2 || !late.length) return svg;
  let bottom = Math.min(...late), top = Math.max(...late);
  const room = (top - bottom || Math.abs(top) || 1) * 0.15;
  bottom -= room; top += room;
  const x = (v) => 240 * (v - rows[0]) / (rows[rows.length - 1] - rows[0] || 1);
  const y = (v) => 34 - 32 * Math.min(1, Math.max(0, (v - bottom) / (top - bottom)));
  if (bottom < 0 && top > 0) drawn(svg, "line", { class: "grid", x1: 0, x2: 240, y1: y(0), y2: y(0) });
  drawn(svg, "path", { class: "band", d: band(rows, low, high, x, y) });
  for (const row of changes) {
    if (row >= rows[0]) drawn(svg, "line", { class: "change", x1: x(row), x2: x(row), y1: 2, y2: 34 });
  }
  drawn(svg, "path", { class: "line", d: path(rows, mean, x, y) });
  return svg;
}

function cells(body, rows) {
  body.replaceChildren(...rows.map((row) => {
    const line = made("tr");
    for (const [value, css] of row) {
      const cell = made("td", value instanceof Node ? undefined : value, css ? { class: css } : {});
      if (value instanceof Node) cell.append(value);
      line.append(cell);
    }
    return line;
  }));
}

function show(state) {
  const percent = `${Math.round(1000 * state.level) / 10}%`, points = state.points, rows = points.rows;
  at("title").textContent = state.target ? `${state.target}: kalprox stream` : "kalprox stream";
  at("about").textContent = state.about;
  const tile = (name, value, doubt) => {
    const box = made("div", undefined, doubt ? { class: "doubt" } : {});
    box.append(made("dt", name), made("dd", value));
    return box;
  };
  at("tiles").replaceChildren(
    tile("Rows", whole(state.rows)), tile("Rows a second", shown(state.rate)),
    tile("Latency, median", `${shown(1000 * state.latency[0])} ms`), tile("Latency, 99%", `${shown(1000 * state.latency[1])} ms`),
    tile("Learned", whole(state.learned)), tile("Predicted only", whole(state.predicted)),
    tile("Waiting for a target", whole(state.waiting)), tile("Dropped while waiting", whole(state.dropped), state.dropped > 0),
    tile("Bad rows", whole(state.bad), state.bad > 0),
    tile(state.classes ? "Wrong classes" : "RMSE", shown(state.error)),
    ...(state.classes ? [] : [tile(`Coverage, ${percent}`, finite(state.coverage) ? `${(100 * state.coverage).toFixed(1)}%` : "–")]),
  );
  const changes = state.changes.map((change) => change.row);
  at("error-title").textContent = state.classes ? "Share of wrong classes" : "Root mean squared error";
  at("error-text").textContent = "Of the predictions that were issued, from one point to the next.";
  chart(at("error"), rows, [{ values: points.error }], { from: 0, changes });
  at("coverage-part").hidden = state.classes;
  at("coverage-text").textContent = `Share of targets inside. The dashed line is ${percent}, what was promised.`;
  chart(at("coverage"), rows, [{ values: points.coverage }], { see: [state.level], aim: state.level, to: 1, changes });
  at("weights-part").hidden = !state.weights;
  if (state.weights) {
    const lines = state.weights.names.map((_, k) => ({ values: points.weights.map((w) => w && w[k]), css: `k${k % 8}` }));
    chart(at("weights"), rows, lines, { from: 0, to: 1, width: 800, height: 170, changes });
    at("weights-legend").replaceChildren(...state.weights.names.map((name, k) => {
      const item = made("li"), svg = document.createElementNS(NS, "svg");
      svg.setAttribute("viewBox", "0 0 22 8");
      drawn(svg, "path", { class: `line k${k % 8}`, d: "M0 4L22 4" });
      item.append(svg, made("span", name));
      return item;
    }));
  }
  at("changes-part").hidden = !changes.length;
  cells(at("changes"), state.changes.map((c) => [[whole(c.row), "n"], [whole(c.found), "n"], [finite(c.probability) ? c.probability.toFixed(3) : "–", "n"], [c.time || "–"]]));
  at("interval-head").textContent = `${percent} interval`;
  at("coefs-text").textContent = state.coefs_text;
  cells(at("coefs"), state.names.map((name, j) => {
    const pick = (part) => points[part].map((values) => values && values[j]);
    const [mean, low, high] = ["coef", "low", "high"].map(pick), n = rows.length - 1;
    return [[name], [spark(rows, mean, low, high, changes)], [shown(mean[n]), "n"], [finite(low[n]) ? `${shown(low[n])} to ${shown(high[n])}` : "–", "n"]];
  }));
  at("bad-part").hidden = !state.reasons.length;
  at("bad-text").textContent = state.bad ? `${whole(state.bad)} of ${whole(state.rows)} rows could not be used.` : "None so far.";
  cells(at("bad"), state.reasons.map(([column, reason, n]) => [[column || "(the whole row)"], [reason, "long"], [whole(n), "n"]]));
  at("foot").textContent = state.foot;
  document.body.dataset.rows = state.rows;
}

async function poll() {
  try {
    const answer = await fetch("/state.json");
    show(await answer.json());
    at("gone").hidden = true;
  } catch (error) {
    at("gone").hidden = false;
  }
  setTimeout(poll, 1000);
}
poll();
