"use strict";
/* The token texts that are touched most, and tokens in their context. */

const MORE = 30; // lines that are added at a time
const AVERAGED = {
  prob: "prob", entropy: "entropy, nats", advantage: "advantage", gradient_norm: "gradient norm",
  factor: "factor", spurious: "spurious",
};

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
  const found = tally(valuesOf("text").length, key, Object.keys(AVERAGED));
  const total = found.tokens.reduce((sum, each) => sum + each, 0);
  const lines = [...causes].map(([code, by]) => {
    const tokens = found.tokens[code];
    const means = Object.keys(AVERAGED).map((name) => [found.mean(name, code), name === "spurious" ? percent : (value) => number(value, true)]);
    const numbers = [[tokens, number], [tokens / total, percent], ...means].map(([value, text]) => text(value));
    return { text: valuesOf("text")[code], tokens, numbers, by: [...by].join("; ") };
  });
  return lines.sort((a, b) => b.tokens - a.tokens);
}

function drawTokens() {
  const [what, wanted] = subject();
  const lines = byText(wanted);
  const titles = ["token", "tokens", "of these", ...Object.values(AVERAGED), "effect"];
  const caption = make("caption", {}, `${number(lines.length)} texts of ${what}`);
  const choose = (text) => () => {
    byId("text").value = `"${text}"`;
    go({ text: `"${text}"` });
  };
  byId("texts").replaceChildren(caption, ...growing(titles, lines, ({ text, numbers, by }) => {
    const button = make("button", { type: "button", class: "piece", click: choose(text) }, spaced(text, 24));
    const cells = numbers.map((each) => make("td", {}, each));
    return make("tr", {}, make("th", { scope: "row" }, button), ...cells, make("td", { class: "by" }, visible(by, 500)));
  }));
  listTokens(byId("in-context"), rowsWith(wanted));
}

/* The head, the body and the foot of a table: lines are drawn some at a time, with a button for more. */
function growing(titles, items, line) {
  const [body, foot] = [make("tbody"), make("tfoot")];
  const grow = () => {
    const from = body.childElementCount;
    body.append(...items.slice(from, from + MORE).map(line));
    const left = items.length - from - MORE;
    const button = make("button", { type: "button", click: grow }, `${number(left)} more`);
    foot.replaceChildren(...(left > 0 ? [make("tr", {}, make("th", { colspan: titles.length }, button))] : []));
  };
  grow();
  return [make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)))), body, foot];
}

/* Tokens in their context, each a button that goes to its response. */
function listTokens(container, rows) {
  const titles = ["step", "in its context", "prob", "entropy, nats", "advantage", "effect"];
  const parts = growing(titles, rows, (row) => {
    const [before, after] = contextOf(row);
    const side = (kind, text) => make("span", { class: kind }, make("span", {}, visible(text)));
    const token = make("b", { class: "piece" }, spaced(store.text(row), 24));
    const sides = [side("before", before.slice(-40)), token, side("after", after.slice(0, 40))];
    const button = make("button", { type: "button", class: "plain context" }, ...sides);
    const values = ["prob", "entropy", "advantage"].map((name) => number(column(name)[row]));
    const texts = [...values, visible(word("effect", row) ?? "untouched", 40)];
    const cells = [`${responseAt(row).step}`, button, ...texts].map((each) => make("td", {}, each));
    return make("tr", { "data-row": row }, ...cells);
  });
  container.replaceChildren(make("div", { class: "wide" }, make("table", { class: "occurrences" }, ...parts)));
}

function buildTokens() {
  const needed = [...Object.keys(AVERAGED), "clause", "before", "after", "prompt", "read"];
  on(["mask"], () => load(needed).then(drawTokens), "tokens");
  explainRows(byId("in-context"));
}
