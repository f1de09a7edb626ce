"use strict";
/* Planes of two columns: where the tokens are, how much gradient they carry, and the rule's region. */

const PLANES = {
  entropy: {
    title: "probability × entropy",
    x: { name: "prob", title: "prob", log: true, bins: 44 },
    y: { name: "entropy", title: "entropy", unit: "nats", log: true, bins: 30 },
  },
  surprisal: {
    title: "surprisal × advantage",
    x: { name: "surprisal", title: "surprisal", unit: "nats", bins: 44 },
    y: { name: "advantage", title: "advantage", bins: 31 },
  },
};
/* The same bound on another column: the function, and whether it turns < into >. */
const SAME = {
  prob: { surprisal: [(v) => Math.exp(-v), true], logprob: [Math.exp, false] },
  surprisal: { prob: [(v) => -Math.log(v), true], logprob: [(v) => -v, true] },
};
/* The choices that the page has numbers for: a run in another trainer knows no gradient norms. */
const HEATS = {
  ...(store.has("gradient_norm") && {
    mean: ["mean gradient norm", ({ mean }, key) => mean("gradient_norm", key)],
    sum: ["sum of gradient norms", ({ sum }, key) => sum.gradient_norm[key]],
  }),
  tokens: ["tokens", ({ tokens }, key) => tokens[key]],
  touched: ["share of touched tokens", ({ touched, tokens }, key) => touched[key] / tokens[key]],
  ...(store.has("spurious") && {
    spurious: ["share of spurious tokens", ({ mean }, key) => mean("spurious", key)],
  }),
};
const SUMS = ["sum", "tokens"]; // their colours are logarithmic
const axes = new Map();
let drawn = null; // {x, y, bins, keys}; the key of a bin is x · (bins of y) + y
let cursor = null; // the key of the bin that the arrow keys are at

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
  const key = (row) => (chosen.mask[row] ? keyOf(found, row) : -1);
  const bins = tally(found.x.bins * found.y.bins, key, ["gradient_norm", "spurious"]);
  const keys = [...bins.tokens.keys()].filter((each) => bins.tokens[each] > 0);
  return { ...found, bins, keys };
}

/* The bounds of the rules on the columns of the plane: {axis, at, below, text}. */
function bounds() {
  const found = [];
  for (const { field, parts } of about.rules) {
    for (const part of parts) {
      for (const { text, column: name, value, below } of part.bounds) {
        for (const axis of ["x", "y"]) {
          const own = name === drawn[axis].name ? [(v) => v, false] : null;
          const [change, turns] = own ?? SAME[drawn[axis].name]?.[name] ?? [];
          const cuts = !change ? [] : value !== null ? [value] : text === part.text ? cutsOf(part, name, below) : [];
          if (!cuts.length) continue;
          const cut = cuts.reduce((sum, each) => sum + each, 0) / cuts.length;
          const ends = [Math.min(...cuts), Math.max(...cuts)].map(number).join(" to ");
          const { unit } = COLUMNS.find((column) => column.name === name) ?? {};
          const far = unit ? `${number(cut)} ${unit}` : number(cut);
          const span = value === null && cuts.length > 1 ? ` (${ends} by update; the line is the mean, ${far})` : "";
          const line = { axis, at: drawn[axis].at(change(cut)), below: below !== turns };
          found.push({ ...line, label: visible(text, 32), text: `${field}: ${visible(text, 200)}${span}` });
        }
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
  if (!Object.hasOwn(HEATS, state.heat)) state.heat = DEFAULTS.heat; // from an address
  for (const id of ["plane", "heat"]) byId(id).value = state[id];
  drawn = countBins(PLANES[state.plane] ?? PLANES.entropy);
  const { x, y } = drawn;
  const [title, value] = HEATS[state.heat];
  const log = SUMS.includes(state.heat);
  const cells = drawn.keys.map((key) => {
    const heat = value(drawn.bins, key);
    const [i, j] = [Math.floor(key / y.bins), key % y.bins];
    const color = log ? Math.log10(heat) : heat;
    const ends = [x.edge(i), x.edge(i + 1), y.edge(j), y.edge(j + 1)];
    return [...ends, Number.isFinite(color) ? color : null, drawn.bins.touched[key] > 0, key];
  });
  const colors = cells.map((cell) => cell[4]).filter((color) => color !== null);
  const gaps = state.heat === "spurious" && colors.length < cells.length;
  const lines = bounds();
  const mark = css("--touched");
  const paper = { color: css("--ink"), backgroundColor: css("--page"), padding: [1, 3] };
  const of = (each, rest) => axis(each.label, { type: "value", min: each.low, max: each.high, ...rest }, each.back);
  const instance = chart("plane-chart", {
    grid: { left: 70, right: 20, top: 76, bottom: 48 },
    tooltip: { formatter: ({ data }) => describe(data[6], "\n") },
    visualMap: {
      type: "continuous", dimension: 4, orient: "horizontal", left: 60, top: 0,
      min: log ? Math.min(...colors) : 0, max: Math.max(...colors, log ? -8 : 0) || 1,
      itemHeight: 160, itemWidth: 11, text: [byId("plane-chart").clientWidth < 600 ? "" : title, ""], textStyle: { color: css("--quiet") },
      calculable: true,
      formatter: (color) => heatText(log ? 10 ** color : color),
      inRange: { color: ["--heat-0", "--heat-1", "--heat-2", "--heat-3"].map(css) },
    },
    xAxis: of(x),
    yAxis: of(y, { nameGap: 48 }),
    series: {
      name: title, type: "custom", clip: true, data: cells, encode: { x: [0, 1], y: [2, 3] },
      renderItem: (_, api) => {
        const [left, bottom] = api.coord([api.value(0), api.value(2)]);
        const [right, top] = api.coord([api.value(1), api.value(3)]);
        const inset = api.value(5) ? 1 : 0.25;
        const [width, height] = [right - left - 2 * inset, bottom - top - 2 * inset];
        const frame = api.value(5) ? { stroke: mark, lineWidth: 1.5 } : {};
        return {
          type: "rect",
          shape: { x: left + inset, y: top + inset, width, height },
          style: { fill: api.visual("color"), ...frame },
          emphasis: { style: { stroke: css("--ink"), lineWidth: 2 } },
        };
      },
      markLine: {
        symbol: "none", silent: true, lineStyle: { color: mark, type: "dashed", width: 1.5 },
        data: lines.map(({ axis: name, at, label: formatter }) => (
          { [`${name}Axis`]: at, label: { formatter, ...paper, ...placeOfLabel(name, at) } }
        )),
      },
      markArea: {
        silent: true, itemStyle: { color: mark, opacity: 0.1 },
        data: lines.length ? [regionOf(lines)] : [],
      },
    },
  });
  instance.off("click");
  instance.on("click", ({ data }) => go({ cell: `${data[6]}` }));
  const rule = `Dashed lines are the bounds of ${lines.map(({ text }) => text).join("; ")}. `;
  byId("region").textContent = `${lines.length ? rule : ""}Cells with a frame have touched tokens.${gaps ? " Cells without a colour have no judged token." : ""}`;
  drawCell();
}

/* Labels stay within the chart: above it, or at the end of a line across. */
function placeOfLabel(name, at) {
  if (name === "y") return { position: "insideEndBottom" };
  const right = at > (drawn.x.low + drawn.x.high) / 2;
  return { position: "end", align: right ? "right" : "left" };
}

/* The rectangle within all bounds. */
function regionOf(lines) {
  const [x, y] = [drawn.x, drawn.y].map(({ low, high }) => [low, high]);
  for (const { axis: name, at, below } of lines) {
    const ends = name === "x" ? x : y;
    if (below) ends[1] = Math.min(ends[1], at);
    else ends[0] = Math.max(ends[0], at);
  }
  return [{ xAxis: x[0], yAxis: y[0] }, { xAxis: x[1], yAxis: y[1] }];
}

const SHARES = ["touched", "spurious"];

function heatText(heat) {
  if (Number.isNaN(heat)) return state.heat === "spurious" ? "not judged" : "–";
  return SHARES.includes(state.heat) ? percent(heat) : number(heat);
}

function describe(key, separator) {
  const { x, y, bins } = drawn;
  const [title, value] = HEATS[state.heat];
  const [tokens, touched] = [bins.tokens, bins.touched].map((each) => number(Math.round(each[key])));
  const before = mark(bins.variance[key]);
  const sure = before === "" || about.touched;
  const lines = [x.between(Math.floor(key / y.bins)), y.between(key % y.bins)];
  lines.push(`tokens ${before}${tokens}, touched ${sure ? "" : "≈ "}${touched}`);
  const heat = heatText(value(bins, key));
  if (!SUMS.includes(state.heat)) lines.push(`${title} ${before && SHARES.includes(state.heat) ? "≈ " : ""}${heat}`);
  return lines.join(separator);
}

/* The tokens of the chosen cell. */
function drawCell() {
  byId("cell-tokens").replaceChildren();
  if (!drawn || !state.cell) return;
  cursor = Number(state.cell);
  byId("cell").textContent = describe(cursor, ", ");
  const inside = (row) => chosen.mask[row] && keyOf(drawn, row) === cursor;
  listTokens(byId("cell-tokens"), rowsWith(inside));
}

/* The arrow keys go to the nearest cell with tokens in their direction. */
function moveInPlane(event) {
  if (event.key === "Enter" && cursor !== null) return go({ cell: `${cursor}` });
  const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
  if (!by || !drawn?.keys.length) return;
  event.preventDefault();
  const { keys, y } = drawn;
  const from = cursor ?? keys[0];
  const steps = (key) => {
    const i = Math.floor(key / y.bins) - Math.floor(from / y.bins);
    const j = (key % y.bins) - (from % y.bins);
    const ahead = i * by[0] + j * by[1];
    return ahead > 0 ? ahead + 3 * Math.abs(by[0] ? j : i) : Infinity;
  };
  const next = keys.reduce((best, key) => (steps(key) < steps(best) ? key : best), keys[0]);
  if (cursor !== null && steps(next) === Infinity) return;
  cursor = cursor === null ? from : next;
  const at = { seriesIndex: 0, dataIndex: keys.indexOf(cursor) };
  const instance = echarts.getInstanceByDom(byId("plane-chart"));
  instance.dispatchAction({ type: "downplay", seriesIndex: 0 });
  instance.dispatchAction({ type: "highlight", ...at });
  instance.dispatchAction({ type: "showTip", ...at });
  byId("cell").textContent = describe(cursor, ", ");
}

function buildPlanes() {
  choices(byId("plane"), Object.entries(PLANES).map(([key, { title }]) => [key, title]), state.plane);
  choices(byId("heat"), Object.entries(HEATS).map(([key, [title]]) => [key, title]), state.heat);
  byId("plane").addEventListener("change", (event) => {
    cursor = null;
    go({ plane: event.target.value, cell: "" });
  });
  byId("heat").addEventListener("change", (event) => go({ heat: event.target.value }));
  byId("plane-chart").addEventListener("keydown", moveInPlane);
  explainRows(byId("cell-tokens"));
  const parts = about.rules.flatMap((rule) => rule.parts.map((part) => part.column));
  const names = ["prob", "surprisal", "entropy", "advantage", "gradient_norm", ...parts];
  on("plane heat mask theme", loaded(drawPlane, names), "planes");
  on("cell", drawCell, "planes");
}
