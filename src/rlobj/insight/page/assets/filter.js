"use strict";
/* The filter above all views: a text, an effect, a range of steps, and a range of each column. */

/* mask: 1 for the rows that the filter finds; knows: for each update, whether it has the numbers. */
const chosen = { mask: null, knows: [], narrowed: false, complete: false };
const fields = new Map(); // by key of the state: {read, show}, and {prepare} of a range
let whole = null; // the text of each response whose tokens are all there
let turns = 0; // number of the newest filter; older ones end when they notice

/* Whether the page surely has each token that the filter may find, or each touched one. */
const certain = (touched = onlyTouched()) => chosen.complete || (touched && about.touched);
const onlyTouched = () => !["", "untouched"].includes(state.effect) || state[rangeOf("spurious")] === "1..";
/* What stands before a count on the page, from the variance of its estimate. */
const mark = (variance, sure = certain()) => (variance > 0 ? "≈ " : sure ? "" : "≥ ");

const inRange = ({ step }) => step >= Number(state.from) && step <= Number(state.to || Infinity);
const counted = (update, i) => inRange(update) && chosen.knows[i];

async function applyFilter() {
  const turn = ++turns;
  const names = RANGED.filter((name) => state[rangeOf(name)]);
  await load(names);
  if (turn !== turns) return;
  const numbers = names.filter((name) => name !== "spurious"); // null = not judged
  chosen.knows = store.updates.map((_, i) => numbers.every((name) => store.knows(name)[i]));
  chosen.mask = new Uint8Array(store.size);
  store.updates.forEach((each, i) => chosen.mask.fill(counted(each, i), each.start, each.end));
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
  const values = column(name);
  const [low, high] = state[rangeOf(name)].split("..").map((end) => Math.fround(end || NaN));
  for (let row = 0; row < store.size; row++) {
    const value = values[row];
    if (value < low || value > high || Number.isNaN(value)) chosen.mask[row] = 0;
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

function showCount() {
  const inside = new Uint8Array(store.size);
  store.updates.forEach((each, i) => inside.fill(counted(each, i), each.start, each.end));
  const found = (row) => (inside[row] ? chosen.mask[row] : -1);
  const { tokens, variance, sum, known } = tally(2, found, ["spurious"]);
  const asked = store.updates.filter(inRange);
  const used = store.updates.filter(counted);
  const counts = [...stepsOf(asked)].map((step) => about.tokens[step]);
  const some = used.length < asked.length;
  const exact = some || counts.every((count) => count !== undefined);
  const all = some || !exact ? tokens[0] + tokens[1] : counts.reduce((sum, each) => sum + each, 0);
  const lines = [`${exact ? "" : "≈ "}${number(Math.round(all))} tokens`];
  const partial = stepsOf(used.filter((each) => !each.whole));
  const needed = [...partial].reduce((sum, step) => sum + about.tokens[step], 0);
  const present = used.filter(({ step }) => partial.has(step)).reduce((sum, each) => sum + surely(each), 0);
  chosen.complete = exact ? !(present < needed) : !(variance[0] + variance[1]);
  if (chosen.narrowed && !tokens[1] && !certain()) {
    const here = countIn({ start: 0, end: store.size }, (row) => inside[row]);
    lines[0] = `unknown: the page has ${number(here)} of ${lines[0]}, and none that the filter finds`;
  } else if (chosen.narrowed) {
    const sure = certain() && !variance[1];
    const error = Math.round(Math.sqrt(variance[1]));
    const matches = Math.min(tokens[1], all); // an estimate from a sample may be larger
    const count = `${mark(variance[1]).replace("≥", "at least")}${number(Math.round(matches))}`;
    const share = percent(matches / all);
    const where = some ? ` of ${saidOf(used, asked)}` : "";
    lines[0] = `${count}${error ? ` ± ${number(error)}` : ""} of ${lines[0]}${where} (${share})`;
    const responses = store.responses.filter(({ start, end }) => chosen.mask.subarray(start, end).includes(1));
    lines[0] += ` in ${sure ? "" : "≥ "}${number(responses.length)} response${responses.length === 1 ? "" : "s"}`;
    const [missed, caught] = sum.spurious;
    if (known.spurious[1]) lines.push(`precision ${sure ? "" : "≈ "}${percent(caught / known.spurious[1])}`);
    const recall = certain(true) && !variance[1] ? "" : "≈ ";
    if (missed + caught) lines.push(`recall ${recall}${percent(caught / (missed + caught))}`);
  }
  if (!used.length && some) lines.splice(0, 3, "No step here has these numbers");
  byId("found").textContent = lines.join(" · ");
  byId("matches").hidden = !chosen.narrowed || !tokens[1];
}

/* The tokens of an update that are there. */
const surely = (update) => countIn(update, (row) => column("in_phase")[row] === 1);
const stepsOf = (updates) => new Set(updates.map(({ step }) => step));

/* "the 6 steps with these numbers", or the updates if others of these steps lack them. */
function saidOf(used, asked) {
  const steps = stepsOf(used);
  const all = asked.every((each) => !steps.has(each.step) || used.includes(each));
  const [size, noun] = all ? [steps.size, "step"] : [used.length, "update"];
  return `the ${size === 1 ? noun : `${number(size)} ${noun}s`} with these numbers`;
}

/* Go to the nearest match after or before the token that is shown; keys then move from there. */
function toMatch(by, keys = false) {
  const here = rowOf(state.at);
  const [first] = pieces(); // of the responses that are shown
  let row = here < 0 ? (first ? responseAt(rowOfPiece(first)).start : 0) - (by > 0) : here;
  for (row += by; row >= 0 && row < store.size; row += by) {
    if (!chosen.mask[row]) continue;
    chosen.focus = keys;
    return go(placeOf(row));
  }
}

/* The range of a column: a slider with two handles above its two numbers. */
function buildRange(name) {
  const { unit, meaning } = describeColumn(name);
  const label = visible(name.replaceAll("_", " "), 40);
  const head = make("div", { class: "one-line", title: meaning }, label, " ", make("small", {}, unit));
  const box = make("div", { class: "range", role: "group", "aria-label": label }, head);
  byId("ranges").append(box);
  if (store.meta.columns[name].type === "bool") {
    const select = make("select", { "aria-label": label });
    choices(select, [["", "any"], ["1..", "yes"], ["..0", "no"]], "");
    box.append(select);
    const show = (text) => (select.value = text);
    return { read: () => select.value, show, prepare() {} };
  }
  const [ends, handles] = ["number", "range"].map((type) =>
    ["least", "most"].map((end) => make("input", { type, step: "any", placeholder: " ", "aria-label": `${end} ${label}` })),
  );
  const slider = make("div", { class: "slider" }, ...handles);
  box.append(slider, make("div", { class: "ends" }, ...ends));
  for (const handle of handles) Object.assign(handle, { min: 0, max: 1, step: 0.002, disabled: true });
  let scale = null; // of the column, when it is loaded
  const place = () => {
    box.classList.toggle("set", ends.some(({ value }) => value));
    handles.forEach((handle, i) => {
      handle.value = scale && ends[i].value ? scale.placeOf(Number(ends[i].value)) : i;
      slider.style.setProperty(["--from", "--to"][i], handle.value);
    });
    handles[0].style.zIndex = handles[0].value > 0.5 ? 1 : 0; // where both meet, it can go back
  };
  slider.addEventListener("input", ({ target }) => {
    const i = handles.indexOf(target);
    const [from, to] = handles.map(({ value }) => Number(value));
    const at = i ? Math.max(from, to) : Math.min(from, to);
    ends[i].value = at === i ? "" : scale.numberAt(at);
    place();
  });
  box.addEventListener("input", place);
  place();
  return {
    read: () => (ends.some(({ value }) => value) ? ends.map(({ value }) => value).join("..") : ""),
    show(text) {
      [ends[0].value, ends[1].value] = text.includes("..") ? text.split("..") : ["", ""];
      place();
    },
    prepare() {
      scale = sliderOf(name);
      ends.forEach((end, i) => (end.placeholder = number(scale.ends[i])));
      for (const handle of handles) handle.disabled = !scale.wide;
      place();
    },
  };
}

/* Before the columns are read, so that nothing moves when they are. */
function buildRanges() {
  byId("ranges").replaceChildren();
  for (const name of RANGED) fields.set(rangeOf(name), buildRange(name));
  const more = RANGED.length - FIRST.length;
  const say = (open) => (byId("more-ranges").textContent = open ? "fewer columns" : `${more} more columns`);
  byId("more-ranges").hidden = more < 1;
  byId("more-ranges").addEventListener("click", ({ target }) => {
    const open = byId("ranges").classList.toggle("open");
    target.setAttribute("aria-expanded", open);
    say(open);
  });
  say(false);
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
  for (const id of ["filter", "ranges"]) {
    byId(id).addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(read, 150);
    });
  }
  byId("filter").addEventListener("keydown", async (event) => {
    if (!event.target.matches("input") || !["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault(); // Escape would empty the field
    if (event.key === "Escape") return event.target.blur();
    read();
    await applyFilter();
    if (chosen.narrowed) toMatch(1, true);
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
