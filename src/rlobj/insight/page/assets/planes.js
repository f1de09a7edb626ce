"use strict";
/* Planes of two columns: where the tokens are, how much gradient they carry, and the rule's region. */

const PROB = { name: "prob", log: true, bins: 44 };
const PLANES = {
  entropy: ["probability × entropy", PROB, { name: "entropy", unit: "nats", log: true, bins: 30 }],
  advantage: ["probability × advantage", PROB, { name: "advantage", bins: 31 }],
};
/* A bound on another column as one on the probability. */
const AS_PROB = { surprisal: (v) => Math.exp(-v), logprob: Math.exp };
/* The choices that the page has numbers for: a run in another trainer knows no gradient norms. */
const HEATS = {
  ...(store.has("gradient_norm") && { mean: ["mean gradient norm", ({ mean }, key) => mean("gradient_norm", key), number] }),
  tokens: ["tokens", ({ tokens }, key) => tokens[key], number], // with logarithmic colours
  touched: ["share of touched tokens", ({ touched, tokens }, key) => touched[key] / tokens[key], percent],
  ...(store.has("spurious") && { spurious: ["share of spurious tokens", ({ mean }, key) => mean("spurious", key), percent] }),
};
const axes = new Map();
const ofWhole = new Uint8Array(store.size); // 1 for the tokens of full tables
let drawn = null; // {x, y, bins, keys}; the key of a bin is x · (bins of y) + y

/* An axis with its bins: `at` makes a coordinate of a number, and `back` a number of a coordinate. */
function binned({ name, unit = "", log, bins }) {
  if (axes.has(name)) return axes.get(name);
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
  const between = (i) => `${name} ${number(back(edge(i)))} to ${number(back(edge(i + 1)))} ${unit}`.trim();
  const found = { name, unit, bins, at, back, low, high: edge(bins), binOf, edge, between };
  axes.set(name, found);
  return found;
}

/* The bin of a row of a full table that the filter finds; below 0 if a number is unknown. */
const keyOf = ({ x, y }, row) =>
  chosen.mask[row] && ofWhole[row] && y.binOf[row] >= 0 ? x.binOf[row] * y.bins + y.binOf[row] : -1;

function countBins([, ...both]) {
  const [x, y] = both.map(binned);
  const bins = tally(x.bins * y.bins, (row) => keyOf({ x, y }, row), ["gradient_norm", "spurious"]);
  return { x, y, bins, keys: [...bins.tokens.keys()].filter((each) => bins.tokens[each] > 0) };
}

/* The bounds of the rules on the columns of the plane: {axis, at, text, label}; of a
   cut, one for each update. */
function bounds() {
  const found = [];
  for (const { field, parts: each } of about.rules) {
    for (const part of each) {
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
  drawn = countBins(PLANES[state.plane]);
  const { x, y, keys, bins } = drawn;
  const [title, value, textOf] = HEATS[state.heat];
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
  [least.textContent, most.textContent] = [textOf(low), `${textOf(high)} ${title}`];
  const mark = css("--touched");
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
    };
  };
  const lines = bounds();
  drawChart({
    type: "custom", clip: true, data: cells, encode: { x: [0, 1], y: [2, 3] }, renderItem,
    markLine: { symbol: "none", silent: true, lineStyle: { color: mark, type: "dashed", width: 1.5 }, data: lines.map(lineOf) },
  });
  const rule = `Dashed lines are the bounds of ${[...new Set(lines.map(({ text }) => text))].join("; ")}. `;
  byId("region").textContent = `${lines.length ? rule : ""}Cells with a frame have touched tokens.${heats.length < keys.length ? " Cells without a colour have no judged token." : ""}`;
  drawCell();
}

/* A bound in the chart. Its label stays within: above it, or at the end of a line across. */
function lineOf({ axis, at, label: formatter }) {
  const align = at > (drawn.x.low + drawn.x.high) / 2 ? "right" : "left";
  const place = axis === "y" ? { position: "insideEndBottom" } : { position: "end", align };
  const paper = { color: css("--ink"), backgroundColor: css("--page"), padding: [1, 3] };
  return { [`${axis}Axis`]: at, label: { show: Boolean(formatter), formatter, ...paper, ...place } };
}

function drawChart(series) {
  const { axis, tooltip, textStyle } = chartLook();
  const of = ({ name, unit, low: min, high: max, back }, nameGap) => {
    const axisLabel = { ...axis.axisLabel, showMinLabel: false, showMaxLabel: false, formatter: (at) => number(back(at)) };
    return { ...axis, name: unit ? `${name}, ${unit}` : name, nameGap, min, max, axisLabel };
  };
  const chart = chartIn(byId("plane-chart"));
  const grid = { left: 70, right: 20, top: 26, bottom: 48 };
  const shown = { ...tooltip, formatter: ({ data }) => describe(data[4], "\n") };
  chart.setOption({ animation: false, textStyle, grid, tooltip: shown, xAxis: of(drawn.x, 28), yAxis: of(drawn.y, 48), series }, true);
  chart.off("click");
  chart.on("click", ({ data }) => go({ cell: data[4] }));
}

function describe(key, separator) {
  const { x, y, bins } = drawn;
  const [title, value, textOf] = HEATS[state.heat];
  const lines = [x.between(Math.floor(key / y.bins)), y.between(key % y.bins)];
  lines.push(`tokens ${number(bins.tokens[key])}, touched ${number(bins.touched[key])}`);
  if (state.heat !== "tokens") lines.push(`${title} ${textOf(value(bins, key))}`);
  return lines.join(separator);
}

/* The tokens of the chosen cell. */
function drawCell() {
  byId("cell-tokens").replaceChildren();
  if (!drawn || state.cell < 0) return;
  byId("cell").textContent = describe(state.cell, ", ");
  listTokens(byId("cell-tokens"), rowsWith((row) => keyOf(drawn, row) === state.cell));
}

function buildPlanes() {
  for (const { start, end, whole: every } of store.updates) if (every) ofWhole.fill(1, start, end);
  for (const [id, titled] of Object.entries({ plane: PLANES, heat: HEATS })) {
    choices(byId(id), Object.entries(titled).map(([key, [title]]) => [key, title]), state[id]);
    byId(id).addEventListener("change", ({ target }) => go({ [id]: target.value, cell: -1 }));
  }
  explainRows(byId("cell-tokens"));
  const held = about.rules.flatMap((rule) => rule.parts.map((part) => part.column));
  const needed = ["prob", "entropy", "advantage", "gradient_norm", ...held];
  on(["plane", "heat", "mask", "theme"], () => load(needed).then(drawPlane), "planes");
  on(["cell"], drawCell, "planes");
}
