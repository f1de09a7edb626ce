"use strict";
/* What all views share: texts and numbers, the rows of tokens, and the state of the page.

   Texts of a run are only set as text: nothing that a model wrote becomes markup. */

const about = JSON.parse(byId("about").textContent);
const store = openStore();
const load = (names) => store.load(names.filter(store.has));
const unknown = new Float32Array(store.size).fill(NaN); // a column that the page does not have
const column = (name) => (store.has(name) ? store.column(name) : unknown);
const valuesOf = (name) => (store.has(name) ? store.values(name) : []);
const EFFECTS = ["dropped", "masked", "reweighted", "switched", "penalised"];

/* Fill a select with [value, text]. */
function choices(select, options, value) {
  select.replaceChildren(...options.map(([key, text]) => make("option", { value: key }, text)));
  select.value = value;
}

// Texts and numbers

const SIGNS = { "\n": "↵", "\t": "⇥", "\x7f": "␡" };

/* A text on one line in which control characters and marks of direction are visible. */
function visible(text, most = Infinity) {
  const beginning = text.length > most ? `${text.slice(0, most)}…` : text;
  return beginning.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu, (each) => {
    const code = each.codePointAt(0);
    return SIGNS[each] ?? (code < 32 ? String.fromCharCode(0x2400 + code) : `‹${code.toString(16)}›`);
  });
}

const spaced = (text, most) => visible(text, most).replaceAll(" ", "·") || "∅";

/* Three digits; with `all`, zeros at the end stay. */
function number(value, all = false) {
  if (value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  let text = Number(value.toPrecision(3)).toExponential();
  if (Number.isInteger(value) || size >= 1e5) text = Math.round(value).toLocaleString("en");
  else if (size >= 1e-3) text = all ? value.toPrecision(3) : String(Number(value.toPrecision(3)));
  return text.replaceAll("-", "−");
}

function percent(share) {
  const value = 100 * share;
  if (Number.isNaN(value)) return "–";
  const digits = value > 99 && value < 100 ? 1 : 1 - Math.floor(Math.log10(value || 10));
  return `${value.toFixed(Math.max(0, Math.min(digits, 4)))}%`;
}

/* A column with its unit and meaning, as far as they are known. */
function describeColumn(name) {
  const { unit = "", meaning = "" } = about.columns[name] ?? {};
  return { name, meaning, unit: /^(nats|tokens)$/.test(unit) ? unit : "" };
}

/* The columns of numbers. */
const isNumber = ([name, { type }]) => type === "float32" || name === "reward";
const COLUMNS = Object.entries(store.meta.columns).filter(isNumber).map(([name]) => describeColumn(name));

// Rows of tokens

/* The response of a row. */
function responseAt(row) {
  let low = 0;
  for (let high = store.responses.length - 1; low < high; ) {
    const middle = (low + high + 1) >> 1;
    if (store.responses[middle].start <= row) low = middle;
    else high = middle - 1;
  }
  return store.responses[low];
}

const word = (name, row) => valuesOf(name)[column(name)[row]] ?? null;

/* Whether the objective touched a row. */
function touchedTest() {
  const effects = column("effect");
  const touched = Uint8Array.from(valuesOf("effect"), (each) => each !== null);
  return (row) => touched[effects[row]] === 1;
}

/* The state that shows a token in its response. */
function placeOf(row) {
  const { step, update, group } = responseAt(row);
  return { view: "responses", step: `${step}`, update: `${update}`, group: `${group}`, at: row };
}

/* The texts before and after a token. */
function contextOf(row, size = 20) {
  const { start, end, whole } = responseAt(row);
  if (!whole) return [word("before", row) ?? "", word("after", row) ?? ""];
  const first = Math.max(start, row - size);
  const last = Math.min(end, row + 1 + size);
  const read = (at) => (word("read", at) ? `│${word("read", at)}│` : ""); // in a conversation
  const text = (from, to) => Array.from({ length: to - from }, (_, i) => read(from + i) + store.text(from + i)).join("");
  const prompt = word("prompt", row);
  const before = first === start && prompt ? `${prompt.slice(-60)}│` : "";
  return [before + text(first, row) + read(row), text(row + 1, last)];
}

/* The rows that pass a test, the newest first. */
function rowsWith(test) {
  const rows = [];
  for (let row = store.size - 1; row >= 0; row--) if (test(row)) rows.push(row);
  return rows;
}

function countIn({ start, end }, test) {
  let count = 0;
  for (let row = start; row < end; row++) count += test(row);
  return count;
}

/* Counts, touched ones and means of rows by `key(row)`; a key below 0 leaves the row out. */
function tally(size, key, names) {
  const sums = () => new Float64Array(size);
  const [tokens, touched, isTouched] = [sums(), sums(), touchedTest()];
  const columns = names.map((name) => ({ name, values: column(name), sum: sums(), known: sums() }));
  for (let row = 0; row < store.size; row++) {
    const k = key(row);
    if (!(k >= 0)) continue;
    tokens[k]++;
    touched[k] += isTouched(row);
    for (const { values, sum, known } of columns) {
      if (Number.isNaN(values[row])) continue;
      sum[k] += values[row];
      known[k]++;
    }
  }
  const of = Object.fromEntries(columns.map((each) => [each.name, each]));
  return { tokens, touched, mean: (name, k) => of[name].sum[k] / of[name].known[k] };
}

// State: what is shown

const state = {
  view: "responses", text: "", effect: "", from: "", to: "", step: "", update: "", group: "", at: -1,
  color: ["prob", "advantage"].find(store.has) ?? COLUMNS[0]?.name,
  plane: "entropy", heat: store.has("gradient_norm") ? "mean" : "tokens", cell: -1,
};
const parts = []; // {keys, draw, view, stale}

/* Call `draw` when one of these keys changes; with `view`, only while it is open. */
const on = (keys, draw, view) => parts.push({ keys, draw, view, stale: true });

function refresh(changed) {
  for (const part of parts) {
    part.stale ||= part.keys.some((key) => changed.includes(key));
    if (!part.stale || (part.view && part.view !== state.view)) continue;
    part.stale = false;
    part.draw();
  }
}

/* Show something else. */
function go(changes) {
  const changed = Object.keys(changes).filter((key) => state[key] !== changes[key]);
  Object.assign(state, changes);
  refresh(changed);
}
