"use strict";
/* The token texts that are touched most, the same token across steps, and tokens in their context. */

const MORE = 30; // lines that are added at a time
const TITLES = {
  ...{ text: "token", tokens: "tokens", share: "share", prob: "probability" },
  ...{ entropy: "entropy, nats", advantage: "advantage", gradient_norm: "gradient" },
  ...{ factor: "factor", spurious: "spurious" },
};
const AVERAGED = ["prob", "entropy", "advantage", "gradient_norm", "factor", "spurious"];

/* The rows that the view is about: what the filter finds, or else what is touched. */
function subject() {
  const [touched, { mask, narrowed }] = [touchedTest(), chosen];
  const anything = valuesOf("effect").some((each) => each !== null);
  if (narrowed) return ["tokens that the filter finds", (row) => mask[row]];
  if (anything) return ["touched tokens", (row) => mask[row] && touched(row)];
  return ["all tokens", (row) => mask[row]];
}

/* Counts and means of rows by token text. */
function byText(wanted) {
  const size = valuesOf("text").length;
  const sums = Object.fromEntries(
    ["tokens", "variance", ...AVERAGED, ...AVERAGED.map((name) => `${name} known`)].map((name) => [
      name,
      new Float64Array(size),
    ]),
  );
  const [codes, p, effects, clauses] = ["text", "inclusion_probability", "effect", "clause"].map(column);
  const columns = AVERAGED.map((name) => [column(name), sums[name], sums[`${name} known`]]);
  const causes = new Map();
  for (let row = 0; row < store.size; row++) {
    if (!wanted(row)) continue;
    const [code, weight] = [codes[row], 1 / p[row]];
    sums.tokens[code] += weight;
    if (p[row] < 1) sums.variance[code] += weight;
    for (const [values, sum, known] of columns) {
      if (Number.isNaN(values[row])) continue;
      sum[code] += weight * values[row];
      known[code] += weight;
    }
    const cause = `${code} ${effects[row]} ${clauses[row]}`;
    causes.set(cause, (causes.get(cause) ?? 0) + weight);
  }
  const lines = [];
  const total = sums.tokens.reduce((sum, each) => sum + each, 0);
  for (let code = 0; code < size; code++) {
    const tokens = sums.tokens[code];
    if (!tokens) continue;
    const line = { text: valuesOf("text")[code], tokens, share: tokens / total, most: 0, by: "" };
    for (const name of AVERAGED) line[name] = sums[name][code] / sums[`${name} known`][code];
    lines[code] = { ...line, estimated: sums.variance[code] > 0 };
  }
  for (const [cause, weight] of causes) {
    const [code, effect, clause] = cause.split(" ").map(Number);
    const line = lines[code];
    if (!line || weight <= line.most) continue;
    line.most = weight;
    const texts = [valuesOf("effect")[effect] ?? "untouched", valuesOf("clause")[clause]];
    line.by = texts.filter(Boolean).join(" by ");
  }
  return lines.filter(Boolean);
}

function shownIn(name, line) {
  if (name === "text") return spaced(line.text, 24);
  if (name === "tokens") return `${line.estimated ? "≈ " : ""}${number(Math.round(line.tokens))}`;
  return name === "share" || name === "spurious" ? percent(line[name]) : number(line[name]);
}

function drawTexts() {
  const [what, wanted] = subject();
  const lines = byText(wanted);
  const down = state.sort.startsWith("-");
  const key = state.sort.replace("-", "");
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
  lines.sort((a, b) => Number.isNaN(a[key]) - Number.isNaN(b[key]) || compare(a[key], b[key]));
  const heads = Object.entries(TITLES).map(([name, title]) => {
    const sorted = name !== key ? "none" : down ? "descending" : "ascending";
    const button = make("button", { type: "button" }, title);
    button.addEventListener("click", () => go({ sort: sorted === "descending" ? name : `-${name}` }));
    return make("th", { scope: "col", "aria-sort": sorted }, button);
  });
  heads.push(make("th", { scope: "col", class: "by" }, "mostly"));
  const body = make("tbody");
  byId("texts").replaceChildren(
    make("caption", {}, `${number(lines.length)} texts of ${what}`),
    make("thead", {}, make("tr", {}, ...heads)),
    body,
  );
  growing(body, byId("more"), lines, (line) => {
    const link = make("a", { class: "piece", href: addressOf({ word: line.text }) });
    link.textContent = shownIn("text", line);
    const numbers = Object.keys(TITLES).slice(1).map((name) => make("td", {}, shownIn(name, line)));
    const by = make("td", { class: "by", title: visible(line.by, 500) }, visible(line.by, 70));
    const here = line.text === state.word ? { "aria-current": true } : {};
    return make("tr", here, make("th", { scope: "row" }, link), ...numbers, by);
  });
}

/* Lines that are drawn some at a time, with a button for more. */
function growing(body, foot, items, line) {
  const grow = () => {
    const from = body.childElementCount;
    body.append(...items.slice(from, from + MORE).map(line));
    const left = items.length - from - MORE;
    const button = make("button", { type: "button" }, `${number(left)} more`);
    button.addEventListener("click", grow);
    foot.replaceChildren(...(left > 0 ? [button] : []));
  };
  grow();
}

/* Tokens in their context, each a link to its response. */
function listTokens(container, rows) {
  const body = make("tbody");
  const titles = ["step", "in its context", "probability", "entropy, nats", "advantage", "effect"];
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  const foot = make("p", { class: "notes" });
  const table = make("table", { class: "occurrences" }, make("thead", {}, head), body);
  container.replaceChildren(make("div", { class: "wide" }, table), foot);
  growing(body, foot, rows, (row) => {
    const [before, after] = contextOf(row);
    const link = make("a", { class: "context", href: addressOf(placeOf(row)) });
    const side = (kind, text) => make("span", { class: kind }, make("span", {}, visible(text)));
    const token = make("b", { class: "piece" }, spaced(store.text(row), 24));
    link.append(side("before", before.slice(-40)), token, side("after", after.slice(0, 40)));
    const values = ["prob", "entropy", "advantage"].map((name) => number(column(name)[row]));
    const texts = [...values, visible(word("effect", row) ?? "untouched", 40)];
    const step = make("td", {}, `${responseAt(row).step}`);
    return make("tr", { "data-row": row }, step, make("td", {}, link), ...texts.map((text) => make("td", {}, text)));
  });
}

function drawWord() {
  const code = valuesOf("text").indexOf(state.word);
  byId("word").hidden = !state.word || code < 0;
  if (byId("word").hidden) return;
  const title = make("span", { class: "piece" }, spaced(state.word, 60));
  byId("word-title").replaceChildren(title, " across steps");
  drawWordChart(acrossSteps(code));
  const rows = [];
  const codes = column("text");
  const [, wanted] = subject();
  for (let row = store.size - 1; row >= 0; row--) {
    if (codes[row] === code && wanted(row)) rows.push(row);
  }
  listTokens(byId("word-tokens"), rows);
}

/* Per step: the tokens with a text, how many are touched, and their mean probability and entropy. */
function acrossSteps(code) {
  const [codes, p, prob, entropy] = ["text", "inclusion_probability", "prob", "entropy"].map(column);
  const touched = touchedTest();
  const steps = new Map();
  for (const { step, start, end, whole } of store.updates) {
    const line = steps.get(step) ?? { step, whole, tokens: 0, touched: 0, known: 0, prob: 0, entropy: 0 };
    steps.set(step, line);
    for (let row = start; row < end; row++) {
      if (codes[row] !== code) continue;
      const weight = 1 / p[row];
      line.tokens += weight;
      if (touched(row)) line.touched += weight;
      if (Number.isNaN(prob[row])) continue;
      line.known += weight;
      line.prob += weight * prob[row];
      line.entropy += weight * entropy[row];
    }
  }
  return [...steps.values()];
}

const CURVES = [
  ["tokens per step", ({ tokens }) => tokens],
  ["touched tokens per step", ({ touched }) => touched],
  ["mean probability", ({ prob, known }) => prob / known],
  ["mean entropy, nats", ({ entropy, known }) => entropy / known],
];

/* A line through the steps with all tokens, and pale points for estimates from a sample. */
function drawWordChart(lines) {
  const small = byId("word-chart").clientWidth < 600;
  const places = CURVES.map((_, i) =>
    small
      ? { left: 48, right: 16, top: `${i * 25 + 6}%`, height: "12%" }
      : { left: i % 2 ? "56%" : 48, width: "40%", top: i < 2 ? "9%" : "59%", height: "28%" },
  );
  const titles = CURVES.map(([text], i) => ({
    ...{ text, left: places[i].left, top: `${parseFloat(places[i].top) - (small ? 5 : 8)}%` },
    textStyle: { fontSize: 12, fontWeight: 500, color: css("--quiet") },
  }));
  const on = (i) => ({ xAxisIndex: i, yAxisIndex: i, color: css("--link") });
  const points = (value, whole) =>
    lines
      .filter((line) => line.whole === whole && Number.isFinite(value(line)))
      .map((line) => [line.step, value(line)]);
  const ends = { min: store.updates[0].step, max: store.updates.at(-1).step };
  chart("word-chart", {
    tooltip: { renderMode: "richText", valueFormatter: (value) => number(value[1]) },
    title: titles,
    grid: places,
    xAxis: CURVES.map((_, i) => axis(i > (small ? 2 : 1) ? "step" : "", { gridIndex: i, ...ends, minInterval: 1 })),
    yAxis: CURVES.map((_, i) => axis("", { gridIndex: i, splitNumber: 3 })),
    series: CURVES.flatMap(([name, value], i) => [
      { ...on(i), name, type: "line", symbolSize: 6, data: points(value, true) },
      { ...on(i), name, type: "scatter", symbolSize: 5, itemStyle: { opacity: 0.35 }, data: points(value, false) },
    ]),
  });
}

function buildTokens() {
  const needed = [...AVERAGED, "clause", "before", "after", "prompt"];
  on("mask sort word", loaded(drawTexts, needed), "tokens");
  on("mask word theme", loaded(drawWord, needed), "tokens");
  explainRows(byId("word-tokens"));
}
