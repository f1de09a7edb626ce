"use strict";
/* The responses of a group, side by side, with every token coloured by a column.

   A response is drawn in chunks, each when it comes near the window. */

const CHUNK = { flow: 400, lines: 50 }; // tokens
const HEIGHT = { flow: 0.06, lines: 1.6 }; // of a token before it is drawn, in rem
const near = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => isIntersecting && fill(target)), { rootMargin: "600px" });

/* Whether the page has every touched token of a step. */
const sure = (step) => step.whole || about.touched;

/* The update and the group of the state, or those with the most touched tokens, of an update with all
   its tokens if there is one. */
function asked() {
  const touched = touchedTest();
  const most = (list) => list.reduce((a, b) => (b.touched > a.touched ? b : a));
  const inStep = store.updates.filter(({ step }) => `${step}` === state.step);
  const whole = store.updates.filter((each) => each.whole);
  const among = [inStep, whole, store.updates].find((updates) => updates.length);
  const counted = () => among.map((each) => ({ ...each, touched: countIn(each, touched) }));
  const update = inStep.find((each) => `${each.update}` === state.update) ?? most(counted());
  const groups = new Map();
  for (const response of store.responses.filter((each) => each.step === update.step && each.update === update.update)) {
    const id = `${response.group}`;
    const group = groups.get(id) ?? { id, touched: 0, matches: 0, responses: [] };
    groups.set(id, group);
    group.responses.push(response);
    group.touched += countIn(response, touched);
    if (chosen.narrowed) group.matches += countIn(response, (row) => chosen.mask[row]);
  }
  return { update, groups, group: groups.get(state.group) ?? most([...groups.values()]) };
}

function drawChoices({ update, group, groups }) {
  const steps = new Map(store.updates.map(({ step, whole }) => [step, whole ? `${step}, all tokens` : step]));
  choices(byId("step"), [...steps], update.step);
  const updates = store.updates.filter(({ step }) => step === update.step);
  choices(byId("update"), updates.map((each) => [each.update, each.update]), update.update);
  const options = [...groups.values()].map(({ id, touched, matches }) => {
    const counts = [touched && sure(update) && `${number(touched)} touched`, matches && `${number(matches)} found`];
    return [id, [id, ...counts.filter(Boolean)].join(" · ")];
  });
  choices(byId("group"), options, group.id);
}

function drawResponses() {
  near.disconnect();
  const found = asked();
  drawChoices(found);
  const { update, group } = found;
  Object.assign(state, { step: `${update.step}`, update: `${update.update}`, group: group.id });
  const recorded = `Step ${update.step} has no full table: these are recorded tokens, each in its context.`;
  byId("whole").textContent = update.whole ? "" : recorded;
  const some = group.responses.find(({ start, end }) => start < end);
  const prompt = some && word("prompt", some.start);
  byId("prompt").textContent = visible(prompt ?? "", 20_000);
  byId("prompt").hidden = !prompt;
  byId("group-responses").replaceChildren(...group.responses.map(card));
  for (const chunk of byId("group-responses").querySelectorAll(".chunk")) near.observe(chunk);
  toPlace();
}

function card(response, index, group) {
  const { start, end, whole } = response;
  const mean = (name) => {
    const known = column(name).subarray(start, end).filter((value) => !Number.isNaN(value));
    return number(known.reduce((sum, value) => sum + value, 0) / known.length);
  };
  const facts = [`reward ${mean("reward")}`, `advantage ${mean("advantage")}`];
  if (whole) facts.push(`${number(end - start)} tokens`);
  const touched = countIn(response, touchedTest());
  if (touched && sure(response)) facts.push(`${number(touched)} touched`);
  const kind = whole ? "flow" : "lines";
  const body = make("div", { class: kind });
  for (let from = start; from < end; from += CHUNK[kind]) {
    const to = Math.min(end, from + CHUNK[kind]);
    const chunk = make("div", { class: "chunk", "data-from": from, "data-to": to });
    chunk.style.minHeight = `${(to - from) * HEIGHT[kind]}rem`;
    body.append(chunk);
  }
  const row = group.slice(0, index).filter(({ rollout }) => rollout === response.rollout).length;
  const prompt = row && word("prompt", start);
  if (prompt) body.prepend(make("div", { class: "heard" }, visible(prompt, 20_000)));
  const began = word("began", start) ? `: ${visible(word("began", start), 40)}` : "";
  const name = make("h3", {}, row ? `rollout ${response.rollout}, row ${row}${began}` : `response ${response.response}`);
  const below = whole && end > start && store.has(V) ? [curve(response)] : [];
  return make("article", {}, make("header", {}, name, make("p", { class: "counts" }, facts.join(" · "))), body, ...below);
}

function fill(chunk) {
  if (chunk.firstChild) return;
  const { whole } = responseAt(Number(chunk.dataset.from));
  for (let row = Number(chunk.dataset.from); row < Number(chunk.dataset.to); row++) {
    const read = whole && word("read", row);
    if (read) chunk.append(make("div", { class: "heard" }, visible(read, 20_000)));
    chunk.append(whole ? piece(row) : inContext(row));
    if (whole && store.text(row).includes("\n")) chunk.append(make("br"));
  }
  chunk.style.minHeight = "";
}

/* A token: its text, its colour, and marks of what the objective did. */
function piece(row) {
  const element = make("span", { class: "piece", "data-row": row }, spaced(store.text(row), 80));
  const effect = word("effect", row);
  if (EFFECTS.includes(effect)) element.classList.add(effect);
  element.classList.toggle("spurious", column("spurious")[row] === 1);
  element.classList.toggle("aside", column("in_phase")[row] === 0);
  look(element);
  return element;
}

function look(element) {
  const row = Number(element.dataset.row);
  paint(element, scaleOf(state.color).shade(column(state.color)[row]));
  element.classList.toggle("match", chosen.narrowed && chosen.mask[row] === 1);
}

/* A token between the texts around it. */
function inContext(row) {
  const [before, after] = contextOf(row).map((text) => make("span", {}, visible(text)));
  return make("div", { class: "context" }, before, piece(row), after);
}

function drawMarks() {
  const kinds = [...EFFECTS.filter((each) => valuesOf("effect").includes(each))];
  if (store.has("spurious")) kinds.push("spurious");
  if (column("in_phase").includes(0)) kinds.push("aside");
  const meanings = { match: "found by the filter", aside: "of another phase of the objective" };
  const samples = [...kinds, "match"].flatMap((kind) => [
    make("span", { class: `piece ${kind}`, "aria-hidden": true }, "token"),
    ` ${meanings[kind] ?? kind} \u2003 `,
  ]);
  byId("marks").replaceChildren(...samples);
}

/* Bring the token that was chosen into view; its chunk is filled. */
function toPlace() {
  const container = byId("group-responses");
  const chunks = [...container.querySelectorAll(".chunk")];
  chunks.filter(({ dataset }) => Number(dataset.from) <= state.at && state.at < Number(dataset.to)).forEach(fill);
  container.querySelector(".here")?.classList.remove("here");
  const element = container.querySelector(`[data-row="${state.at}"]`);
  if (!element) return;
  element.classList.add("here");
  const { top, bottom } = element.getBoundingClientRect();
  if (top < 160 || bottom > innerHeight - 100) element.scrollIntoView({ block: "center" });
}

function buildResponses() {
  const colours = COLUMNS.map(({ name }) => [name, visible(name.replaceAll("_", " "), 40)]);
  choices(byId("color"), colours, state.color);
  const change = (id, also) =>
    byId(id).addEventListener("change", ({ target }) => go({ [id]: target.value, ...also }));
  change("step", { update: "", group: "", at: -1 });
  change("update", { group: "", at: -1 });
  change("group", { at: -1 });
  change("color");
  explainRows(byId("group-responses"));
  drawMarks();
  const after = (draw) => () => load(["began", "prob", "reward", "advantage", "prompt", "read", V, RETURN, state.color]).then(draw);
  const paintAll = () => byId("group-responses").querySelectorAll("[data-row]").forEach(look);
  on(["step", "update", "group"], after(drawResponses), "responses");
  on(["at"], after(toPlace), "responses");
  on(["color"], after(drawLegend), "responses");
  on(["color", "mask"], after(paintAll), "responses");
  on(["mask"], after(() => drawChoices(asked())), "responses");
}

// Colours of tokens by a column: from pale to blue, or from orange over pale to blue. A shade is in
// [-1, 1]; the style sheet makes a colour of it, which fits light and dark.

const scales = new Map();

/* The number below which a share of them lies, from a sample. */
function quantile(values, share, of = (value) => value) {
  const stride = Math.ceil(values.length / 50_000);
  const sample = [];
  for (let i = 0; i < values.length; i += stride) {
    const value = of(values[i]);
    if (Number.isFinite(value)) sample.push(value);
  }
  sample.sort((a, b) => a - b);
  return sample[Math.min(sample.length - 1, Math.floor(share * sample.length))] ?? 0;
}

/* {shade: number -> [-1, 1], at: shade -> number, diverging} of a column. */
function scaleOf(name) {
  if (!scales.has(name)) scales.set(name, buildScale(name, column(name)));
  return scales.get(name);
}

function buildScale(name, values) {
  const bound = (x) => Math.max(-1, Math.min(1, x));
  if (/prob/.test(name) && !/log/.test(name)) {
    const low = Math.min(-1, Math.floor(quantile(values, 0.001, Math.log10)));
    return { shade: (x) => bound(Math.log10(x) / low), at: (s) => 10 ** (low * s) };
  }
  if (name === "ratio" || name === "factor") {
    const far = quantile(values, 0.995, (x) => Math.abs(Math.log2(x))) || 1;
    const shade = (x) => (x > 0 ? bound(Math.log2(x) / far) : x - 1);
    return { shade, at: (s) => 2 ** (far * s), diverging: true };
  }
  const far = quantile(values, 0.995, Math.abs) || 1;
  const diverging = quantile(values, 0.001) < 0;
  return { shade: (x) => bound(x / far), at: (s) => far * s, diverging };
}

function paint(element, shade) {
  element.classList.toggle("unknown", Number.isNaN(shade));
  element.classList.toggle("below", shade < 0);
  element.style.setProperty("--shade", `${Math.round(100 * Math.abs(shade || 0))}%`);
}

function drawLegend() {
  const { at, diverging } = scaleOf(state.color);
  const bar = make("span", { class: "bar" });
  for (let i = 0; i <= 20; i++) {
    const swatch = make("i");
    paint(swatch, diverging ? i / 10 - 1 : i / 20);
    bar.append(swatch);
  }
  const tick = (s) => number(Number(at(s).toPrecision(s * s === 1 ? 2 : 1)));
  const ends = (diverging ? [-1, 0, 1] : [0, 0.5, 1]).map((s) => make("span", {}, tick(s)));
  byId("legend").replaceChildren(bar, make("span", { class: "ticks" }, ...ends));
}
