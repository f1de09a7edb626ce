"use strict";
/* The filter above all views: a text, an effect, a range of steps, and a range of each column. */

/* mask: 1 for the rows that the filter finds; inside: 1 for those of its steps. */
const chosen = { mask: null, inside: null, narrowed: false };
let inPhase = null; // 1 for the tokens that count
let whole = null; // the text of each response whose tokens are all there
let turns = 0; // number of the newest filter; older ones end when they notice

/* The columns with a range in the filter, such as "0.1..0.9"; the first ones are always shown. */
const FIRST = ["prob", "entropy", "advantage", "gradient_norm", "spurious", `${about.critic}_value`].filter(store.has);
const RANGED = [...new Set([...FIRST, ...Object.keys(store.meta.columns)])].filter(
  (name) => store.meta.columns[name].type !== "text" && !/^(start|step|update|group|rollout|response|token|in_phase|holds:.*)$/s.test(name),
);
const rangeOf = (name) => `range:${name}`;
const readers = new Map(); // key of the state -> a function that reads its field

async function applyFilter() {
  const turn = ++turns;
  const names = RANGED.filter((name) => state[rangeOf(name)]);
  await load(names);
  if (turn !== turns) return;
  inPhase ??= Uint8Array.from(column("in_phase"), (within) => within !== 0);
  chosen.inside = inPhase.slice();
  const { text, effect, from, to } = state;
  for (const { step, start, end } of store.updates)
    if (step < Number(from) || step > Number(to || Infinity)) chosen.inside.fill(0, start, end);
  chosen.mask = chosen.inside.slice();
  for (const name of names) keepRange(name);
  if (text) keepText(text);
  if (effect === "touched") keep("effect", (each) => each !== null);
  else if (effect) keep("effect", (each) => (each ?? "untouched") === effect);
  chosen.narrowed = Boolean(text || effect || names.length);
  showCount();
  refresh(["mask"]);
}

/* Keep the rows whose number lies in a range, such as "0.1..": both ends belong to it. */
function keepRange(name) {
  const [values, { mask }] = [column(name), chosen];
  const [low, high] = state[rangeOf(name)].split("..").map((end) => Math.fround(end || NaN));
  for (let row = 0; row < mask.length; row++) {
    const value = values[row];
    if (value < low || value > high || Number.isNaN(value)) mask[row] = 0;
  }
}

/* Keep the rows whose text in a column holds. */
function keep(name, holds) {
  const codes = column(name);
  const kept = Uint8Array.from(valuesOf(name), (each) => holds(each));
  const none = Number(holds(null) ?? 0);
  for (let row = 0; row < store.size; row++) chosen.mask[row] &= kept[codes[row]] ?? none;
}

/* Keep the rows whose token has a text, alone or with the tokens beside it; in quotes: is the text. */
function keepText(text) {
  const quoted = /^"(.*)"$/s.exec(text);
  if (quoted) return keep("text", (each) => each === quoted[1]);
  const [codes, texts] = [column("text"), valuesOf("text").map((each) => each ?? "")];
  const alone = texts.map((each) => each.includes(text));
  const found = Uint8Array.from(codes, (code) => alone[code]);
  const textOf = (row) => texts[codes[row]];
  const joined = ({ start, end }) => Array.from(codes.subarray(start, end), (code) => texts[code]).join("");
  whole ??= store.responses.map((each) => (each.whole ? joined(each) : ""));
  store.responses.forEach((each, i) => {
    let [row, begin] = [each.start, 0]; // of its text in that of the response
    for (let at = whole[i].indexOf(text); at >= 0; at = whole[i].indexOf(text, at + 1)) {
      while (begin + textOf(row).length <= at) begin += textOf(row++).length;
      for (let [next, place] = [row, begin]; place < at + text.length; place += textOf(next++).length) found[next] = 1;
    }
  });
  for (let row = 0; row < store.size; row++) chosen.mask[row] &= found[row];
}

/* How many tokens of the page are found. */
function showCount() {
  const page = { start: 0, end: store.size };
  const [found, all] = [chosen.mask, chosen.inside].map((mask) => countIn(page, (row) => mask[row]));
  const among = store.responses.filter(({ start, end }) => chosen.mask.subarray(start, end).includes(1));
  const responses = new Set(among.map(({ step, update, rollout }) => `${step} ${update} ${rollout}`)).size;
  const text = `${number(found)} of ${number(all)} tokens of this page (${percent(found / all)})`;
  byId("found").textContent = chosen.narrowed
    ? `${text} in ${number(responses)} response${responses === 1 ? "" : "s"}`
    : `${number(all)} tokens of this page`;
}

/* The range of a column, its two ends, or yes and no: how it is read. */
function buildRange(name) {
  const { unit, meaning } = describeColumn(name);
  const label = visible(name.replaceAll("_", " "), 40);
  const head = make("div", { class: "one-line", title: meaning }, label, " ", make("small", {}, unit));
  const box = make("div", { class: "range", role: "group", "aria-label": label }, head);
  byId(FIRST.includes(name) ? "ranges" : "more-ranges").append(box);
  if (store.meta.columns[name].type === "bool") {
    const select = make("select", { "aria-label": label });
    choices(select, [["", "any"], ["1..", "yes"], ["..0", "no"]], "");
    box.append(select);
    return () => select.value;
  }
  const ends = ["least", "most"].map((end) =>
    make("input", { type: "number", step: "any", "aria-label": `${end} ${label}` }),
  );
  box.append(make("span", { class: "ends" }, ends[0], "–", ends[1]));
  return () => (ends.some(({ value }) => value) ? ends.map(({ value }) => value).join("..") : "");
}

/* Before the columns are read, so that nothing moves when they are. */
function buildRanges() {
  for (const name of RANGED) readers.set(rangeOf(name), buildRange(name));
}

function buildFilter() {
  const known = EFFECTS.filter((each) => valuesOf("effect").includes(each));
  const effects = ["touched", ...known, "untouched"].map((each) => [each, each]);
  choices(byId("effect"), [["", "any"], ...effects], "");
  byId("from").placeholder = store.updates[0]?.step ?? "";
  byId("to").placeholder = store.updates.at(-1)?.step ?? "";
  for (const key of ["text", "effect", "from", "to"]) readers.set(key, () => byId(key).value);
  let waiting = 0;
  const readSoon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => go(Object.fromEntries([...readers].map(([key, read]) => [key, read()]))), 150);
  };
  for (const event of ["input", "reset"]) byId("filter").addEventListener(event, readSoon);
  byId("filter").addEventListener("submit", (event) => event.preventDefault());
  on([...readers.keys()], applyFilter);
}
