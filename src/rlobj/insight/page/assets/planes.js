"use strict";
/* Planes of two columns: where the tokens are, how much gradient they carry, and the rule's region. */

const PLANES = {
  entropy: {
    title: "probability × entropy",
    x: { name: "prob", title: "prob", log: true, bins: 44 },
    y: { name: "entropy", title: "entropy", unit: "nats", log: true, bins: 30 },
  },
  advantage: {
    title: "probability × advantage",
    x: { name: "prob", title: "prob", log: true, bins: 44 },
    y: { name: "advantage", title: "advantage", bins: 31 },
  },
};
/* A bound on another column as one on the probability. */
const AS_PROB = { surprisal: (v) => Math.exp(-v), logprob: Math.exp };
/* The choices that the page has numbers for: a run in another trainer knows no gradient norms. */
const HEATS = {
  ...(store.has("gradient_norm") && { mean: ["mean gradient norm", ({ mean }, key) => mean("gradient_norm", key)] }),
  tokens: ["tokens", ({ tokens }, key) => tokens[key]], // with logarithmic colours
  touched: ["share of touched tokens", ({ touched, tokens }, key) => touched[key] / tokens[key]],
  ...(store.has("spurious") && { spurious: ["share of spurious tokens", ({ mean }, key) => mean("spurious", key)] }),
};
const axes = new Map();
const ofWhole = new Uint8Array(store.size); // 1 for the tokens of full tables
let drawn = null; // {x, y, bins, keys}; the key of a bin is x · (bins of y) + y

/* An axis with its bins: `at` makes a coordinate of a number, and `back` a number of a coordinate. */
function binned({ name, title, unit = "", log, bins: most }) {
  const bins = byId("plane-chart").clientWidth < 600 ? Math.round(0.6 * most) : most;
  const key = `${name} ${bins}`;
  if (axes.has(key)) return axes.get(key);
  const values = column(name);
  const at = log ? (v) => Math.log10(Math.max(v, 1e-8)) : (v) => v;
  const back = log ? (c) => 10 ** c : (c) => c;
  let [low, high] = [quantile(values, 0.0002, at), quantile(values, 0.9998, at)];
  if (log) [low, high] = [Math.floor(5 * low) / 5, name === "prob" ? 0 : Math.ceil(5 * high) / 5];
  const width = (high - low || 1) / bins;
  const binOf = new Int8Array(values.length);
  for (let row = 0; row < values.length; row++) {
    const bin = Math.max(0, Math.min(bins - 1, Math.floor((at(values[row]) - low) / width)));
    binOf[row] = Number.isNaN(bin) ? -1 : bin;
  }
  const edge = (i) => low + i * width;
  const between = (i) => `${title} ${number(back(edge(i)))} to ${number(back(edge(i + 1)))} ${unit}`.trim();
  const label = unit ? `${title}, ${unit}` : title;
  const found = { name, label, bins, at, back, low, high: edge(bins), binOf, edge, between };
  axes.set(key, found);
  return found;
}

/* The bin of a row; below 0 if a number is unknown. */
const keyOf = ({ x, y }, row) => (y.binOf[row] < 0 ? -1 : x.binOf[row] * y.bins + y.binOf[row]);

function countBins(plane) {
  const found = { x: binned(plane.x), y: binned(plane.y) };
  const key = (row) => (chosen.mask[row] && ofWhole[row] ? keyOf(found, row) : -1);
  const bins = tally(found.x.bins * found.y.bins, key, ["gradient_norm", "spurious"]);
  const keys = [...bins.tokens.keys()].filter((each) => bins.tokens[each] > 0);
  return { ...found, bins, keys };
}

/* The bounds of the rules on the columns of the plane: {axis, at, text, label}; of a
   cut, one for each update. */
function bounds() {
  const found = [];
  for (const { field, parts } of about.rules) {
    for (const part of parts) {
      for (const { text, column: name, value, below } of part.bounds) {
        const axis = name === drawn.y.name ? "y" : "x";
        const change = name === drawn[axis].name ? (v) => v : AS_PROB[name];
        const cuts = !change ? [] : value !== null ? [value] : text === part.text ? cutsOf(part, name, below) : [];
        const line = { axis, text: `${field}: ${visible(text, 200)}` };
        cuts.forEach((cut, i) => found.push({ ...line, at: drawn[axis].at(change(cut)), label: i ? "" : visible(text, 40) }));
      }
    }
  }
  return found;
}

/* The bounds that a cut such as entropy.bottom(0.8) comes to, one for each whole update. */
function cutsOf(part, name, below) {
  const [held, values] = [column(part.column), column(name)];
  const found = [];
  for (const { start, end } of store.updates) {
    let far = NaN;
    for (let row = start; row < end; row++) {
      if (held[row] === 1 && !(below ? values[row] <= far : values[row] >= far)) far = values[row];
    }
    if (!Number.isNaN(far)) found.push(far);
  }
  return found;
}

function drawPlane() {
  byId("no-plane").hidden = ofWhole.includes(1);
  byId("plane-of-tokens").hidden = !ofWhole.includes(1);
  if (!ofWhole.includes(1)) return;
  if (!Object.hasOwn(HEATS, state.heat)) state.heat = DEFAULTS.heat; // from an address
  for (const id of ["plane", "heat"]) byId(id).value = state[id];
  drawn = countBins(PLANES[state.plane] ?? PLANES.entropy);
  const { x, y, keys, bins } = drawn;
  const [title, value] = HEATS[state.heat];
  const log = state.heat === "tokens";
  const heats = keys.map((key) => value(bins, key)).filter((heat) => !Number.isNaN(heat));
  const [low, high] = [log ? Math.min(...heats) : 0, Math.max(...heats)];
  const shade = (heat) => (log ? Math.log(heat / low) / Math.log(high / low) : heat / high) || 0;
  const colors = ["--heat-0", "--heat-1", "--heat-2", "--heat-3"].map(css);
  const colorOf = (heat) => (Number.isNaN(heat) ? "transparent" : echarts.color.lerp(shade(heat), colors));
  const cells = keys.map((key) => {
    const [i, j] = [Math.floor(key / y.bins), key % y.bins];
    return [x.edge(i), x.edge(i + 1), y.edge(j), y.edge(j + 1), key];
  });
  const [least, , most] = byId("heat-scale").children;
  [least.textContent, most.textContent] = [heatText(low), `${heatText(high)} ${title}`];
  const lines = bounds();
  const mark = css("--touched");
  const paper = { color: css("--ink"), backgroundColor: css("--page"), padding: [1, 3] };
  const { axis, tooltip, textStyle } = chartLook();
  const ends = { showMinLabel: false, showMaxLabel: false };
  const of = ({ label: name, low: min, high: max, back }, nameGap) => (
    { ...axis, name, nameGap, min, max, axisLabel: { ...axis.axisLabel, ...ends, formatter: (at) => number(back(at)) } }
  );
  const renderItem = (_, api) => {
    const [left, bottom] = api.coord([api.value(0), api.value(2)]);
    const [right, top] = api.coord([api.value(1), api.value(3)]);
    const key = api.value(4);
    const inset = bins.touched[key] ? 1 : 0.25;
    const frame = bins.touched[key] ? { stroke: mark, lineWidth: 1.5 } : {};
    return {
      type: "rect",
      shape: { x: left + inset, y: top + inset, width: right - left - 2 * inset, height: bottom - top - 2 * inset },
      style: { fill: colorOf(value(bins, key)), ...frame },
      emphasis: { style: { stroke: css("--ink"), lineWidth: 2 } },
    };
  };
  const chart = chartIn(byId("plane-chart"));
  const label = ({ axis: name, at, label: formatter }) => ({ [`${name}Axis`]: at, label: { show: Boolean(formatter), formatter, ...paper, ...placeOfLabel(name, at) } });
  const series = {
    type: "custom", clip: true, data: cells, encode: { x: [0, 1], y: [2, 3] }, renderItem,
    markLine: { symbol: "none", silent: true, lineStyle: { color: mark, type: "dashed", width: 1.5 }, data: lines.map(label) },
  };
  const grid = { left: 70, right: 20, top: 26, bottom: 48 };
  const shown = { ...tooltip, formatter: ({ data }) => describe(data[4], "\n") };
  chart.setOption({ animation: false, textStyle, grid, tooltip: shown, xAxis: of(x, 28), yAxis: of(y, 48), series }, true);
  chart.off("click");
  chart.on("click", ({ data }) => go({ cell: `${data[4]}` }));
  const rule = `Dashed lines are the bounds of ${[...new Set(lines.map(({ text }) => text))].join("; ")}. `;
  byId("region").textContent = `${lines.length ? rule : ""}Cells with a frame have touched tokens.${heats.length < keys.length ? " Cells without a colour have no judged token." : ""}`;
  drawCell();
}

/* Labels stay within the chart: above it, or at the end of a line across. */
function placeOfLabel(name, at) {
  if (name === "y") return { position: "insideEndBottom" };
  const right = at > (drawn.x.low + drawn.x.high) / 2;
  return { position: "end", align: right ? "right" : "left" };
}

const heatText = (heat) => {
  if (Number.isNaN(heat)) return "not judged";
  return ["touched", "spurious"].includes(state.heat) ? percent(heat) : number(heat);
};

function describe(key, separator) {
  const { x, y, bins } = drawn;
  const [title, value] = HEATS[state.heat];
  const lines = [x.between(Math.floor(key / y.bins)), y.between(key % y.bins)];
  lines.push(`tokens ${number(bins.tokens[key])}, touched ${number(bins.touched[key])}`);
  if (state.heat !== "tokens") lines.push(`${title} ${heatText(value(bins, key))}`);
  return lines.join(separator);
}

/* The tokens of the chosen cell. */
function drawCell() {
  byId("cell-tokens").replaceChildren();
  if (!drawn || !state.cell) return;
  const cell = Number(state.cell);
  byId("cell").textContent = describe(cell, ", ");
  listTokens(byId("cell-tokens"), rowsWith((row) => chosen.mask[row] && ofWhole[row] && keyOf(drawn, row) === cell));
}

function buildPlanes() {
  for (const { start, end, whole } of store.updates) if (whole) ofWhole.fill(1, start, end);
  choices(byId("plane"), Object.entries(PLANES).map(([key, { title }]) => [key, title]), state.plane);
  choices(byId("heat"), Object.entries(HEATS).map(([key, [title]]) => [key, title]), state.heat);
  byId("plane").addEventListener("change", (event) => go({ plane: event.target.value, cell: "" }));
  byId("heat").addEventListener("change", (event) => go({ heat: event.target.value }));
  explainRows(byId("cell-tokens"));
  const parts = about.rules.flatMap((rule) => rule.parts.map((part) => part.column));
  const names = ["prob", "entropy", "advantage", "gradient_norm", ...parts];
  on("plane heat mask theme", loaded(drawPlane, names), "planes");
  on("cell", drawCell, "planes");
}
