"use strict";
/* The responses of a group, side by side, with every token coloured by a column.

   A response is drawn in chunks, each when it comes near the window. */

const CHUNK = { flow: 400, lines: 50 }; // tokens
const HEIGHT = { flow: 0.06, lines: 1.6 }; // of a token before it is drawn, in rem
const near = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => isIntersecting && fill(target)), { rootMargin: "600px" });

const pieces = () => [...byId("group-responses").querySelectorAll("[data-row]")];
const rowOfPiece = (element) => Number(element.dataset.row);

/* Whether the page has every touched token of a step. */
const sure = ({ whole }) => whole || about.touched;

function countIn({ start, end }, test) {
  let count = 0;
  for (let row = start; row < end; row++) count += test(row);
  return count;
}

/* The update and the group of the state, or those with the most touched tokens that have a gradient,
   of an update with all its tokens if there is one. */
function asked() {
  const [touched, advantage] = [touchedTest(), column("advantage")];
  const acted = (row) => touched(row) && advantage[row] !== 0;
  const most = (list) => list.reduce((a, b) => (b.acted > a.acted ? b : a), list[0]);
  const inStep = store.updates.filter(({ step }) => `${step}` === state.step);
  const whole = store.updates.filter((each) => each.whole);
  const among = [inStep, whole, store.updates].find((updates) => updates.length);
  const counted = () => among.map((each) => ({ ...each, acted: countIn(each, acted) }));
  const update = inStep.find((each) => `${each.update}` === state.update) ?? most(counted());
  const groups = new Map();
  for (const response of store.responses.filter(isOf(update))) {
    const id = `${response.group}`;
    const group = groups.get(id) ?? { id, acted: 0, touched: 0, matches: 0, responses: [] };
    groups.set(id, group);
    group.responses.push(response);
    group.acted += countIn(response, acted);
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

function card(response) {
  const { start, end, whole } = response;
  const mean = (name) => {
    const known = column(name).subarray(start, end).filter((value) => !Number.isNaN(value));
    return number(known.reduce((sum, value) => sum + value, 0) / known.length);
  };
  const facts = [`reward ${mean("reward")}`, `advantage ${mean("advantage")}`];
  if (whole) facts.push(`${number(end - start)} tokens`);
  const touched = countIn(response, touchedTest());
  if (touched && sure(response)) facts.push(`${number(touched)} touched`);
  const name = `response ${response.response}`;
  const label = { role: "listbox", "aria-label": `tokens of ${name}` };
  const kind = whole ? "flow" : "lines";
  const body = make("div", { class: kind, ...label });
  for (let from = start; from < end; from += CHUNK[kind]) {
    const to = Math.min(end, from + CHUNK[kind]);
    const chunk = make("div", { class: "chunk", role: "none", "data-from": from, "data-to": to });
    chunk.style.minHeight = `${(to - from) * HEIGHT[kind]}rem`;
    body.append(chunk);
  }
  const head = make("header", {}, make("h3", {}, name), make("p", { class: "counts" }, facts.join(" · ")));
  return make("article", { "aria-label": name }, head, body);
}

function fill(chunk) {
  if (chunk.firstChild) return;
  const { whole } = responseAt(Number(chunk.dataset.from));
  for (let row = Number(chunk.dataset.from); row < Number(chunk.dataset.to); row++) {
    const read = whole && word("read", row);
    if (read) chunk.append(make("div", { class: "heard", role: "none" }, visible(read, 20_000)));
    chunk.append(whole ? piece(row) : inContext(row));
    if (whole && store.text(row).includes("\n")) chunk.append(make("br"));
  }
  chunk.style.minHeight = "";
  if (!byId("group-responses").querySelector('[tabindex="0"]')) chunk.querySelector("[data-row]").tabIndex = 0; // of the Tab key
}

/* A token: its text, its colour, and marks of what the objective did. */
function piece(row) {
  const element = make("span", { class: "piece", role: "option", "data-row": row, tabindex: -1 });
  element.textContent = spaced(store.text(row), 80);
  const effect = word("effect", row);
  if (EFFECTS.includes(effect)) element.classList.add(effect);
  element.classList.toggle("spurious", column("spurious")[row] === 1);
  element.classList.toggle("aside", column("in_phase")[row] === 0);
  look(element);
  return element;
}

function look(element) {
  const row = rowOfPiece(element);
  paint(element, scaleOf(state.color).shade(column(state.color)[row]));
  element.classList.toggle("match", chosen.narrowed && chosen.mask[row] === 1);
}

/* A token between the texts around it. */
function inContext(row) {
  const [before, after] = contextOf(row).map((text) => make("span", {}, visible(text)));
  return make("div", { class: "context", role: "none" }, before, piece(row), after);
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

/* Bring the token of the address into view. */
function toPlace() {
  const row = rowOf(state.at);
  const element = row >= 0 && elementOf(row);
  for (const each of pieces()) {
    each.classList.toggle("here", each === element);
    each.setAttribute("aria-selected", each === element);
    if (element) each.tabIndex = each === element ? 0 : -1;
  }
  if (!element) return;
  const { top, bottom } = element.getBoundingClientRect();
  if (top < 160 || bottom > innerHeight - 100) element.scrollIntoView({ block: "center" });
  if (document.activeElement?.dataset?.row) element.focus({ preventScroll: true });
}

/* The element of a token of the group that is shown; its chunk is filled. */
function elementOf(row) {
  const chunks = [...byId("group-responses").querySelectorAll(".chunk")];
  const holds = ({ dataset }) => Number(dataset.from) <= row && row < Number(dataset.to);
  chunks.filter(holds).forEach(fill);
  return byId("group-responses").querySelector(`[data-row="${row}"]`);
}

/* The arrows go to the token before or after. */
function move(event) {
  const element = event.target.closest("[data-row]");
  const by = { ArrowLeft: -1, ArrowRight: 1, Enter: 0 }[event.key];
  const next = element && by !== undefined && rowOfPiece(element) + by;
  const there = Number.isInteger(next) && elementOf(next);
  if (!there || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  there.focus({ preventScroll: true });
  go(placeOf(next));
}

function buildResponses() {
  const colours = COLUMNS.map(({ name }) => [name, visible(name.replaceAll("_", " "), 40)]);
  choices(byId("color"), colours, state.color);
  const change = (id, also) =>
    byId(id).addEventListener("change", ({ target }) => go({ [id]: target.value, ...also }));
  change("step", { update: "", group: "", at: "" });
  change("update", { group: "", at: "" });
  change("group", { at: "" });
  change("color");
  const container = byId("group-responses");
  container.addEventListener("keydown", move);
  container.addEventListener("click", ({ target }) => {
    const element = target.closest("[data-row]");
    element?.focus({ preventScroll: true });
    if (element) go(placeOf(rowOfPiece(element)));
  });
  explainRows(container);
  drawMarks();
  const needed = () => load(["prob", "reward", "advantage", "prompt", "read", state.color]);
  const after = (draw) => () => needed().then(draw);
  on("step update group", after(drawResponses), "responses");
  on("at", after(toPlace), "responses");
  on("color", after(drawLegend), "responses");
  on("color mask", after(() => pieces().forEach(look)), "responses");
  on("mask", after(() => drawChoices(asked())), "responses");
}
