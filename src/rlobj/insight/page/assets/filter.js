"use strict";
/* The filter above all views: a rule, a text, an effect and a range of steps. */

const FIELDS = ["where", "text", "effect", "from", "to"];
/* mask: 1 for the rows that the filter finds; answers: 1 for the updates that can answer its rule. */
const chosen = { mask: null, answers: null, narrowed: false, complete: false };
/* Whether the page surely has each token that the filter may find, or each touched one. */
const certain = (touched = !["", "untouched"].includes(state.effect)) =>
  chosen.complete || (touched && about.touched);
/* What stands before a count on the page, from the variance of its estimate. */
const mark = (variance, sure = certain()) => (variance > 0 ? "≈ " : sure ? "" : "≥ ");
/* What was probably meant where a rule cannot be read. */
const HINTS = [
  [/&&|\|\|/, "write & or | once"],
  [/^.{0,2}!/, "write ~ before a rule in parentheses"],
  [/^.{0,2}[^<>=]=[^=]/, "compare with < or >, such as kept < 1"],
  [/\d,\d/, "write a point in a number: 0.01"],
  [/^.{0,2}\d+%/, "write a share as a number: 0.8"],
];
/* The same, by the message and the rule; these stand alone. */
const WHOLE = [
  [/number '(spurious|kept)'/, "spurious and kept are 1 or 0. Write spurious > 0, or kept < 1"],
  [/\b(token|text|effect) *[=!]=/, 'The fields to the right find a text, such as "7" in quotes, and an effect'],
];
let turns = 0; // number of the newest filter; older ones end when they notice

const inRange = ({ step }) => step >= Number(state.from) && step <= Number(state.to || Infinity);
const counted = (update, i) => inRange(update) && (chosen.answers?.[i] ?? true);

async function applyFilter() {
  const turn = ++turns;
  try {
    const rule = state.where.trim() ? rules.parse(state.where) : null;
    await load(rule ? rules.names(rule) : []);
    if (turn !== turns) return;
    chosen.mask = rule ? rules.select(rule, store) : new Uint8Array(store.size).fill(1);
    chosen.answers = rule && store.answers(rule);
    showProblem(null);
  } catch (error) {
    if (!(error instanceof RuleError)) throw error;
    showProblem(error);
    chosen.mask ??= new Uint8Array(store.size).fill(1);
    byId("found").textContent = "";
    byId("matches").hidden = true;
    return;
  }
  store.updates.forEach((each, i) => {
    if (!counted(each, i)) chosen.mask.fill(0, each.start, each.end);
  });
  const { text, effect } = state;
  const quoted = /^"(.*)"$/s.exec(text);
  if (text) keep("text", (each) => (quoted ? each === quoted[1] : each?.includes(text)));
  if (effect === "touched") keep("effect", (each) => each !== null);
  else if (effect) keep("effect", (each) => (each ?? "untouched") === effect);
  chosen.narrowed = Boolean(state.where.trim() || text || effect);
  showCount();
  refresh(["mask"]);
}

/* Keep the rows whose text in a column holds. */
function keep(name, holds) {
  const codes = column(name);
  const kept = Uint8Array.from(valuesOf(name), (each) => holds(each));
  const none = Number(holds(null) ?? 0);
  for (let row = 0; row < store.size; row++) chosen.mask[row] &= kept[codes[row]] ?? none;
}

function showCount() {
  const inside = new Uint8Array(store.size);
  store.updates.forEach((each, i) => inside.fill(counted(each, i), each.start, each.end));
  const { tokens, variance, sum, known } = tally(
    2,
    (row) => (inside[row] ? chosen.mask[row] : -1),
    ["spurious"],
  );
  const asked = store.updates.filter(inRange);
  const used = store.updates.filter(counted);
  const counts = [...stepsOf(asked)].map((step) => about.tokens[step]);
  const some = used.length < asked.length;
  const exact = some || counts.every((count) => count !== undefined);
  const whole = some || !exact ? tokens[0] + tokens[1] : counts.reduce((sum, each) => sum + each, 0);
  const lines = [`${exact ? "" : "≈ "}${number(Math.round(whole))} tokens`];
  const partial = stepsOf(used.filter((each) => !each.whole));
  const needed = [...partial].reduce((sum, step) => sum + about.tokens[step], 0);
  const present = used.filter(({ step }) => partial.has(step)).reduce((sum, each) => sum + surely(each), 0);
  chosen.complete = exact ? !(present < needed) : !(variance[0] + variance[1]);
  if (chosen.narrowed && !tokens[1] && !certain()) {
    const here = countIn({ start: 0, end: store.size }, (row) => inside[row]);
    lines[0] = `unknown: the page has ${number(here)} of ${lines[0]}, and none that the filter finds`;
  } else if (chosen.narrowed) {
    const error = Math.round(Math.sqrt(variance[1]));
    const count = `${mark(variance[1]).replace("≥", "at least")}${number(Math.round(tokens[1]))}`;
    const share = percent(tokens[1] / whole);
    const where = some ? ` of ${saidOf(used, asked)}` : "";
    lines[0] = `${count}${error ? ` ± ${number(error)}` : ""} of ${lines[0]}${where} (${share})`;
    const [missed, caught] = sum.spurious;
    const [found, all] = [certain(), certain(true)].map((sure) => (sure && !variance[1] ? "" : "≈ "));
    if (known.spurious[1]) lines.push(`precision ${found}${percent(caught / known.spurious[1])}`);
    if (missed + caught) lines.push(`recall ${all}${percent(caught / (missed + caught))}`);
  }
  if (!used.length && some) lines.splice(0, 3, "No step here has all tokens, which this rule compares");
  byId("found").textContent = lines.join(" · ");
  byId("matches").hidden = !chosen.narrowed || !tokens[1];
}

/* The tokens of an update that were recorded with probability 1. */
const surely = (update) => countIn(update, (row) => column("inclusion_probability")[row] === 1);
const stepsOf = (updates) => new Set(updates.map(({ step }) => step));

/* "the 6 steps with all tokens", or the updates if others of these steps lack numbers. */
function saidOf(used, asked) {
  const steps = stepsOf(used);
  const all = asked.every((each) => !steps.has(each.step) || used.includes(each));
  const [size, noun] = all ? [steps.size, "step"] : [used.length, "update"];
  const name = size === 1 ? noun : `${number(size)} ${noun}s`;
  return `the ${name} with all tokens${all ? "" : " scored"}`;
}

function showProblem(error) {
  const box = byId("problem");
  box.hidden = !error;
  byId("where").toggleAttribute("aria-invalid", Boolean(error));
  if (!error) return;
  const at = error.at ?? 0;
  const start = Math.max(0, at - 40);
  const caret = `${" ".repeat(visible(state.where.slice(start, at)).length)}^`;
  const line = visible(state.where.slice(start, start + 80));
  const code = make("pre", {}, error.at === undefined ? line : `${line}\n${caret}`);
  const near = state.where.slice(Math.max(0, at - 2), at + 6);
  const hint = HINTS.find(([pattern]) => pattern.test(near))?.[1];
  const whole = WHOLE.find(([pattern]) => pattern.test(`${error.message}\n${state.where}`))?.[1];
  box.replaceChildren(code, visible(whole ?? (hint ? `${error.message}: ${hint}` : error.message), 600));
}

/* Go to the nearest match after or before the token that is shown; keys then move from there. */
function toMatch(by, keys = false) {
  const here = rowOf(state.at);
  let row = here < 0 ? (shownRows()[0] ?? 0) - (by > 0) : here;
  for (row += by; row >= 0 && row < store.size; row += by) {
    if (!chosen.mask[row]) continue;
    chosen.focus = keys;
    return go(placeOf(row));
  }
}

function buildFilter() {
  const known = EFFECTS.filter((each) => valuesOf("effect").includes(each));
  const effects = ["touched", ...known, "untouched"].map((each) => [each, each]);
  choices(byId("effect"), [["", "any"], ...effects], "");
  byId("from").placeholder = store.updates[0]?.step ?? "";
  byId("to").placeholder = store.updates.at(-1)?.step ?? "";
  for (const rule of about.examples) {
    const button = make("button", { type: "button", class: "example", title: rule }, rule);
    button.addEventListener("click", () => go({ where: rule }, true));
    byId("examples").append(button);
  }
  let waiting = 0;
  const read = () => {
    clearTimeout(waiting);
    go(Object.fromEntries(FIELDS.map((name) => [name, byId(name).value])));
  };
  byId("filter").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(read, 150);
  });
  byId("filter").addEventListener("keydown", async (event) => {
    if (!event.target.matches("input") || !["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault(); // Escape would empty the field
    if (event.key === "Escape") return event.target.blur();
    read();
    await applyFilter();
    if (byId("problem").hidden && chosen.narrowed) toMatch(1, true);
  });
  byId("previous-match").addEventListener("click", () => toMatch(-1));
  byId("next-match").addEventListener("click", () => toMatch(1));
  on(FIELDS.join(" "), () => {
    for (const name of FIELDS) if (byId(name).value !== state[name]) byId(name).value = state[name];
    return applyFilter();
  });
}
