"use strict";
/* The token texts that are touched most, and tokens in their context. */

const MORE = 30; // lines that are added at a time
const TITLES = {
  text: "token", tokens: "tokens", share: "of these", prob: "prob",
  entropy: "entropy, nats", advantage: "advantage", gradient_norm: "gradient norm",
  factor: "factor", spurious: "spurious", by: "effect",
};
const AVERAGED = ["prob", "entropy", "advantage", "gradient_norm", "factor", "spurious"];

/* The rows that the view is about: what the filter finds, or else what is touched. */
function subject() {
  const [touched, { mask, narrowed }] = [touchedTest(), chosen];
  const anything = valuesOf("effect").some((each) => each !== null);
  if (narrowed) return ["tokens that the filter finds", (row) => mask[row]];
  if (anything) return ["touched tokens of this page", (row) => mask[row] && touched(row)];
  return ["tokens of this page", (row) => mask[row]];
}

/* Counts and means of rows by token text, with the effects and the clauses that fired. */
function byText(wanted) {
  const codes = column("text");
  const causes = new Map(); // text -> Set of its causes
  const key = (row) => {
    if (!wanted(row)) return -1;
    const [effect, clause] = [word("effect", row) ?? "untouched", word("clause", row)];
    if (!causes.has(codes[row])) causes.set(codes[row], new Set());
    causes.get(codes[row]).add(clause ? `${effect} by ${clause}` : effect);
    return codes[row];
  };
  const found = tally(valuesOf("text").length, key, AVERAGED);
  const total = found.tokens.reduce((sum, each) => sum + each, 0);
  const lines = [...causes].map(([code, by]) => {
    const [tokens, spurious] = [found.tokens[code], percent(found.mean("spurious", code))];
    const means = Object.fromEntries(AVERAGED.map((name) => [name, number(found.mean(name, code), true)]));
    const counts = { count: tokens, tokens: number(tokens), share: percent(tokens / total) };
    return { text: valuesOf("text")[code], ...means, ...counts, spurious, by: [...by].join("; ") };
  });
  return lines.sort((a, b) => b.count - a.count);
}

function drawTokens() {
  const [what, wanted] = subject();
  const lines = byText(wanted);
  const heads = Object.values(TITLES).map((title) => make("th", { scope: "col" }, title));
  const caption = make("caption", {}, `${number(lines.length)} texts of ${what}`);
  const body = make("tbody");
  byId("texts").replaceChildren(caption, make("thead", {}, make("tr", {}, ...heads)), body);
  growing(body, byId("more-texts"), lines, (line) => {
    const link = make("a", { class: "piece", href: addressOf({ text: `"${line.text}"` }) }, spaced(line.text, 24));
    const numbers = Object.keys(TITLES).slice(1, -1).map((name) => make("td", {}, line[name]));
    return make("tr", {}, make("th", { scope: "row" }, link), ...numbers, make("td", { class: "by" }, visible(line.by, 500)));
  });
  listTokens(byId("in-context"), rowsWith(wanted));
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

function buildTokens() {
  const needed = [...AVERAGED, "clause", "before", "after", "prompt", "read"];
  on("mask", loaded(drawTokens, needed), "tokens");
  explainRows(byId("in-context"));
}
