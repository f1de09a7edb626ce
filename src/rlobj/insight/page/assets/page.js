"use strict";
/* What all views share: elements, texts and numbers, places of tokens, and the state of the page.

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
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
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

/* The columns with a range in the filter, such as "0.1..0.9"; the first ones are always shown. */
const FIRST = ["prob", "entropy", "advantage", "gradient_norm", "spurious"].filter(store.has);
const RANGED = [...new Set([...FIRST, ...Object.keys(store.meta.columns)])].filter(
  (name) => store.meta.columns[name].type !== "text" && !/^(start|step|update|group|response|token|in_phase|holds:.*)$/s.test(name),
);
const rangeOf = (name) => `range:${name}`;

// Places of tokens

/* The entry of store.updates or store.responses with this row. */
function indexAt(entries, row) {
  let low = 0;
  for (let high = entries.length - 1; low < high; ) {
    const middle = (low + high + 1) >> 1;
    if (entries[middle].start <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}

const responseAt = (row) => store.responses[indexAt(store.responses, row)];
const isOf = ({ step, update }) => (each) => each.step === step && each.update === update;
const word = (name, row) => valuesOf(name)[column(name)[row]] ?? null;

/* Whether the objective touched a row. */
function touchedTest() {
  const effects = column("effect");
  const touched = Uint8Array.from(valuesOf("effect"), (each) => each !== null);
  return (row) => touched[effects[row]] === 1;
}

/* What the address keeps of a token. */
function placeOf(row) {
  const { step, update, group, response } = responseAt(row);
  const at = [step, update, response, column("position")[row]].join("_");
  return { view: "responses", step: `${step}`, update: `${update}`, group: `${group}`, at };
}

/* The row of such a place; -1 if there is none. */
function rowOf(at) {
  const [step, update, response, position] = at.split("_").map(Number);
  const same = isOf({ step, update });
  const found = store.responses.find((each) => each.response === response && same(each));
  return found ? column("position").subarray(0, found.end).indexOf(position, found.start) : -1;
}

/* The texts before and after a token. */
function contextOf(row, size = 20) {
  const { start, end, whole } = responseAt(row);
  if (!whole) return [word("before", row) ?? "", word("after", row) ?? ""];
  const first = Math.max(start, row - size);
  const last = Math.min(end, row + 1 + size);
  const read = (at) => (word("read", at) ? `│${word("read", at)}│` : ""); // in a conversation
  const piece = (at) => read(at) + store.text(at);
  const text = (from, to) => Array.from({ length: to - from }, (_, i) => piece(from + i)).join("");
  const prompt = word("prompt", row);
  const before = first === start && prompt ? `${prompt.slice(-60)}│` : "";
  return [before + text(first, row) + read(row), text(row + 1, last)];
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

// State: what is shown. The address keeps it, so that a link shows the same.

const DEFAULTS = {
  view: "responses", text: "", effect: "", from: "", to: "",
  ...Object.fromEntries(RANGED.map((name) => [rangeOf(name), ""])),
  step: "", update: "", group: "", at: "",
  color: ["prob", "advantage"].find(store.has) ?? COLUMNS[0]?.name,
  plane: "entropy", heat: store.has("gradient_norm") ? "mean" : "tokens", cell: "",
};
const state = { ...DEFAULTS };
const parts = []; // {keys, draw, view, stale}
let saving = 0;

/* Call `draw` when one of these keys changes; with `view`, only while it is open. */
const loaded = (draw, names) => async () => {
  await load(names);
  draw();
};
const on = (keys, draw, view) => parts.push({ keys: keys.split(" "), draw, view, stale: true });

function refresh(changed) {
  for (const part of parts) {
    part.stale ||= part.keys.some((key) => changed.includes(key));
    if (!part.stale || (part.view && part.view !== state.view)) continue;
    part.stale = false;
    part.draw();
  }
}

function addressOf(changes = {}) {
  const kept = Object.entries({ ...state, ...changes });
  return `#${new URLSearchParams(kept.filter(([key, value]) => value !== DEFAULTS[key]))}`;
}

/* Show something else; `visit` makes it a step that the browser's Back undoes. */
function go(changes, visit = false) {
  const changed = Object.keys(changes).filter((key) => state[key] !== changes[key]);
  Object.assign(state, changes);
  clearTimeout(saving);
  if (visit && changed.length) history.pushState(null, "", addressOf());
  else saving = setTimeout(() => history.replaceState(null, "", addressOf()), 200);
  refresh(changed);
}

function readAddress() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const known = Object.keys(DEFAULTS).map((key) => [key, given[key] ?? DEFAULTS[key]]);
  return Object.fromEntries(known);
}
