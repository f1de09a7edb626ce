"use strict";
/* The token texts that are touched most, the same token across steps, and tokens in their context. */

const MORE = 30; // lines that are added at a time
const ENOUGH = 5; // sampled tokens of a step for a mean
const TITLES = {
  text: "token", tokens: "tokens", share: "of these", prob: "prob",
  entropy: "entropy, nats", advantage: "advantage", gradient_norm: "gradient norm",
  factor: "factor", spurious: "spurious",
};
const AVERAGED = ["prob", "entropy", "advantage", "gradient_norm", "factor", "spurious"];

/* The rows that the view is about: what the filter finds, or else what is touched; and whether the
   page surely has all of them. */
function subject() {
  const [touched, { mask, narrowed }] = [touchedTest(), chosen];
  const anything = valuesOf("effect").some((each) => each !== null);
  if (narrowed) return ["tokens that the filter finds", (row) => mask[row], certain()];
  if (anything) return ["touched tokens", (row) => mask[row] && touched(row), certain(true)];
  return ["all tokens", (row) => mask[row], certain()];
}

/* Counts and means of rows by token text, and what touched them: places in the list of causes. */
function byText(wanted, sure) {
  const [codes, effects, clauses] = ["text", "effect", "clause"].map(column);
  const causes = []; // by text: effect and clause in one number
  const key = (row) => {
    if (!wanted(row)) return -1;
    (causes[codes[row]] ??= new Set()).add(effects[row] * 65536 + clauses[row]);
    return codes[row];
  };
  const found = tally(valuesOf("text").length, key, AVERAGED);
  const total = found.tokens.reduce((sum, each) => sum + each, 0);
  const effectOf = (cause) => valuesOf("effect")[Math.floor(cause / 65536)] ?? "untouched";
  const clauseOf = (cause) => valuesOf("clause")[cause % 65536];
  const ruled = [...new Set(causes.flatMap((each) => [...(each ?? [])]))].filter(clauseOf);
  const legend = ruled.map((cause) => `${effectOf(cause)} by ${clauseOf(cause)}`);
  const textOf = (cause) => {
    const by = ruled.length > 1 ? ruled.indexOf(cause) + 1 : 0;
    return by ? `${effectOf(cause)} by ${by}` : effectOf(cause);
  };
  const lines = valuesOf("text").flatMap((text, code) => {
    const tokens = found.tokens[code];
    if (!tokens) return [];
    const means = Object.fromEntries(AVERAGED.map((name) => [name, found.mean(name, code)]));
    const by = [...causes[code]].map(textOf).join("; ");
    const before = mark(found.variance[code], sure);
    return { text, tokens, share: tokens / total, mark: before, by, ...means };
  });
  return [lines, legend];
}

function shownIn(name, line) {
  if (name === "text") return spaced(line.text, 24);
  if (name === "tokens") return `${line.mark}${number(Math.round(line.tokens))}`;
  if (name === "share" || name === "spurious") return `${line.mark && "≈ "}${percent(line[name])}`;
  return number(line[name], true);
}

function clauseLine(text, i, all) {
  const number = all.length > 1 ? `${i + 1}  ` : "";
  return make("div", { class: "clause" }, number + visible(text, 500));
}

function drawTexts() {
  const [what, wanted, sure] = subject();
  const [lines, legend] = byText(wanted, sure);
  if (!lines.length) {
    const but = sure ? "" : "But the page lacks tokens: it has a sample of them. ";
    const [none, advice] = chosen.narrowed
      ? ["The filter finds no token.", "Change the text, the effect, the steps or the ranges above."]
      : ["No token.", "Widen the steps above."];
    byId("texts").replaceChildren(make("caption", {}, `${none} ${but}${advice}`));
    byId("more").replaceChildren();
    return;
  }
  const down = state.sort.startsWith("-");
  const key = state.sort.replace("-", "");
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
  lines.sort((a, b) => Number.isNaN(a[key]) - Number.isNaN(b[key]) || compare(a[key], b[key]));
  const heads = Object.entries(TITLES).map(([name, title]) => {
    const sorted = name !== key ? "none" : down ? "descending" : "ascending";
    const click = () => go({ sort: sorted === "descending" ? name : `-${name}` });
    const button = make("button", { type: "button", class: "plain", click }, title);
    return make("th", { scope: "col", "aria-sort": sorted }, button);
  });
  heads.push(make("th", { scope: "col", class: "by one-line" }, "effect"));
  const [head, body] = [make("thead", {}, make("tr", {}, ...heads)), make("tbody")];
  const title = `${sure ? "" : "at least "}${number(lines.length)} texts of ${what}`;
  byId("texts").replaceChildren(make("caption", {}, title, ...legend.map(clauseLine)), head, body);
  growing(body, byId("more"), lines, (line) => {
    const link = make("a", { class: "piece", href: addressOf({ word: line.text }) });
    link.textContent = shownIn("text", line);
    const numbers = Object.keys(TITLES).slice(1).map((name) => make("td", {}, shownIn(name, line)));
    const by = make("td", { class: "by one-line", title: visible(line.by, 500) }, visible(line.by, 70));
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
    const button = make("button", { type: "button", click: grow }, `${number(left)} more`);
    foot.replaceChildren(...(left > 0 ? [button] : []));
  };
  grow();
}

/* The rows that pass a test, the newest first. */
function rowsWith(test) {
  const rows = [];
  for (let row = store.size - 1; row >= 0; row--) if (test(row)) rows.push(row);
  return rows;
}

/* Tokens in their context, each a link to its response. */
function listTokens(container, rows) {
  const body = make("tbody");
  const titles = ["step", "in its context", "prob", "entropy, nats", "advantage", "effect"];
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
    const cells = [`${responseAt(row).step}`, link, ...texts].map((each) => make("td", {}, each));
    return make("tr", { "data-row": row }, ...cells);
  });
}

function drawWord() {
  const code = valuesOf("text").indexOf(state.word);
  const other = byId("word-title").dataset.word !== state.word;
  byId("word-title").dataset.word = state.word;
  byId("word").hidden = !state.word || code < 0;
  if (byId("word").hidden) return;
  const title = make("span", { class: "piece" }, spaced(state.word, 60));
  byId("word-title").replaceChildren(title, " across steps");
  const lines = acrossSteps(code);
  drawWordChart(lines);
  byId("word-note").hidden = lines.every(({ exact }) => exact.prob);
  const codes = column("text");
  const [, wanted] = subject();
  const same = rowsWith((row) => codes[row] === code && chosen.mask[row]);
  const rows = same.filter(wanted);
  listTokens(byId("word-tokens"), rows.length ? rows : same);
  if (!other) return;
  byId("word-title").focus({ preventScroll: true });
  byId("word-title").scrollIntoView();
}

/* Per step: the tokens with a text, how many are touched, and their mean probability and entropy. */
function acrossSteps(code) {
  const whole = new Map(store.updates.map((each) => [each.step, each.whole]));
  const steps = [...whole.keys()];
  const places = new Int32Array(store.size);
  for (const { step, start, end } of store.updates) places.fill(steps.indexOf(step), start, end);
  const codes = column("text");
  const key = (row) => (codes[row] === code ? places[row] : -1);
  const found = tally(steps.length, key, ["prob", "entropy"]);
  const touchedHere = touchedTest();
  const acted = tally(steps.length, (row) => (touchedHere(row) ? key(row) : -1));
  return steps.map((step, i) => {
    const [prob, entropy] = ["prob", "entropy"].map((name) => found.mean(name, i));
    const [tokens, touched] = [found.tokens[i], found.touched[i]];
    const known = whole.get(step);
    const exact = { tokens: known, touched: known || about.touched, prob: known, entropy: known };
    const few = found.sampled[i] < ENOUGH && !known;
    const means = few ? {} : { prob, entropy };
    return { step, exact, tokens, touched, ...means };
  });
}

const CURVES = {
  tokens: "tokens", touched: "touched tokens",
  prob: "mean probability", entropy: "mean entropy, nats",
};

/* A line through the steps with all tokens, and pale points for estimates from a sample. */
function drawWordChart(lines) {
  const small = byId("word-chart").clientWidth < 600;
  const names = Object.keys(CURVES);
  const narrow = (i) => ({ left: 48, right: 16, top: `${i * 25 + 6}%`, height: "12%" });
  const wide = (i) => ({ left: i % 2 ? "56%" : 48, width: "40%", top: i < 2 ? "9%" : "59%", height: "28%" });
  const places = names.map((_, i) => (small ? narrow(i) : wide(i)));
  const titles = names.map((name, i) => ({
    text: CURVES[name], left: places[i].left, top: `${parseFloat(places[i].top) - (small ? 5 : 8)}%`,
    textStyle: { fontSize: 12, fontWeight: 500, color: css("--quiet") },
  }));
  const on = (i) => ({ xAxisIndex: i, yAxisIndex: i, color: css("--link") });
  const points = (name, exact) => {
    const known = lines.filter((line) => Boolean(line.exact[name]) === exact && Number.isFinite(line[name]));
    return known.map((line) => [line.step, line[name]]);
  };
  const pale = { type: "scatter", symbolSize: 5, itemStyle: { opacity: 0.35 } };
  const ends = { min: store.updates[0].step, max: store.updates.at(-1).step };
  chart("word-chart", {
    tooltip: { valueFormatter: (value) => number(value[1]) },
    title: titles,
    grid: places,
    xAxis: names.map((_, i) => axis(i > (small ? 2 : 1) ? "step" : "", { gridIndex: i, ...ends, minInterval: 1 })),
    yAxis: names.map((name, i) => axis("", { gridIndex: i, splitNumber: 3, ...(name === "prob" && { max: 1, interval: 0.5 }) })),
    series: names.flatMap((name, i) => [
      { ...on(i), name: CURVES[name], type: "line", symbolSize: 6, data: points(name, true) },
      { ...on(i), name: CURVES[name], ...pale, data: points(name, false) },
    ]),
  });
}

function buildTokens() {
  const needed = [...AVERAGED, "clause", "before", "after", "prompt", "read"];
  on("mask sort word", loaded(drawTexts, needed), "tokens");
  on("mask word theme", loaded(drawWord, needed), "tokens");
  explainRows(byId("word-tokens"));
}
