"use strict";
/* The filter above all views: a text, an effect, a range of steps, and a range of each column. */

/* mask: 1 for the rows that the filter finds; inside: 1 for those of its steps. */
const chosen = { mask: null, inside: null, narrowed: false };
const fields = new Map(); // by key of the state: {read, show}
let inPhase = null; // 1 for the tokens that count
let whole = null; // the text of each response whose tokens are all there
let turns = 0; // number of the newest filter; older ones end when they notice

const inRange = ({ step }) => step >= Number(state.from) && step <= Number(state.to || Infinity);

async function applyFilter() {
  const turn = ++turns;
  const names = RANGED.filter((name) => state[rangeOf(name)]);
  await load(names);
  if (turn !== turns) return;
  inPhase ??= Uint8Array.from(column("in_phase"), (within) => within !== 0);
  chosen.inside = inPhase.slice();
  for (const each of store.updates) if (!inRange(each)) chosen.inside.fill(0, each.start, each.end);
  chosen.mask = chosen.inside.slice();
  for (const name of names) keepRange(name);
  const { text, effect } = state;
  if (text) keepText(text);
  if (effect === "touched") keep("effect", (each) => each !== null);
  else if (effect) keep("effect", (each) => (each ?? "untouched") === effect);
  chosen.narrowed = Boolean(text || effect || names.length);
  byId("reset").disabled = [...fields.keys()].every((key) => !state[key]);
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
    const more = text.length - 1;
    for (row = each.start; more && !each.whole && row < each.end; row++) {
      const [before, after] = [word("before", row) ?? "", word("after", row) ?? ""];
      if ((before.slice(-more) + textOf(row) + after.slice(0, more)).includes(text)) found[row] = 1;
    }
  });
  for (let row = 0; row < store.size; row++) chosen.mask[row] &= found[row];
}

/* How many tokens of the page are found. */
function showCount() {
  const page = { start: 0, end: store.size };
  const [found, all] = [chosen.mask, chosen.inside].map((mask) => countIn(page, (row) => mask[row]));
  byId("matches").hidden = !chosen.narrowed || !found;
  byId("found").textContent = `${number(all)} tokens of this page`;
  if (!chosen.narrowed) return;
  const responses = store.responses.filter(({ start, end }) => chosen.mask.subarray(start, end).includes(1));
  const text = `${number(found)} of ${number(all)} tokens of this page (${percent(found / all)})`;
  byId("found").textContent = `${text} in ${number(responses.length)} response${responses.length === 1 ? "" : "s"}`;
}

/* Go to the nearest match after or before the token that is shown. */
function toMatch(by) {
  const here = rowOf(state.at);
  const [first] = pieces(); // of the responses that are shown
  let row = here < 0 ? (first ? responseAt(rowOfPiece(first)).start : 0) - (by > 0) : here;
  for (row += by; row >= 0 && row < store.size; row += by) if (chosen.mask[row]) return go(placeOf(row));
}

/* The range of a column: its two ends, or yes and no. */
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
    return { read: () => select.value, show: (text) => (select.value = text) };
  }
  const ends = ["least", "most"].map((end) =>
    make("input", { type: "number", step: "any", "aria-label": `${end} ${label}` }),
  );
  box.append(make("span", { class: "ends" }, ends[0], "–", ends[1]));
  return {
    read: () => (ends.some(({ value }) => value) ? ends.map(({ value }) => value).join("..") : ""),
    show: (text) => ([ends[0].value, ends[1].value] = text.includes("..") ? text.split("..") : ["", ""]),
  };
}

/* Before the columns are read, so that nothing moves when they are. */
function buildRanges() {
  for (const name of RANGED) fields.set(rangeOf(name), buildRange(name));
  byId("more").open = RANGED.some((name) => !FIRST.includes(name) && state[rangeOf(name)]);
}

function buildFilter() {
  const known = EFFECTS.filter((each) => valuesOf("effect").includes(each));
  const effects = ["touched", ...known, "untouched"].map((each) => [each, each]);
  choices(byId("effect"), [["", "any"], ...effects], "");
  byId("from").placeholder = store.updates[0]?.step ?? "";
  byId("to").placeholder = store.updates.at(-1)?.step ?? "";
  for (const key of ["text", "effect", "from", "to"])
    fields.set(key, { read: () => byId(key).value, show: (value) => (byId(key).value = value) });
  let waiting = 0;
  const read = () => {
    clearTimeout(waiting);
    go(Object.fromEntries([...fields].map(([key, field]) => [key, field.read()])));
  };
  byId("filter").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(read, 150);
  });
  byId("filter").addEventListener("submit", async (event) => {
    event.preventDefault();
    read();
    await applyFilter();
    if (chosen.narrowed) toMatch(1);
  });
  const empty = Object.fromEntries([...fields.keys()].map((key) => [key, ""]));
  byId("reset").addEventListener("click", () => go(empty, true));
  byId("previous-match").addEventListener("click", () => toMatch(-1));
  byId("next-match").addEventListener("click", () => toMatch(1));
  on([...fields.keys()].join(" "), () => {
    for (const [key, { read, show }] of fields) if (read() !== state[key]) show(state[key]);
    return applyFilter();
  });
}
