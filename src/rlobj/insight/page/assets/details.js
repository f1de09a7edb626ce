"use strict";
/* The panel with every column of one token, in a fixed place with a fixed order. */

const HINT = "Point at a token, or press Tab and the arrows.";
const PLACE = ["step", "update", "group", "response", "turn", "position", "token"];
const cells = new Map(); // name -> the element of its value
let shown = -1; // row in the panel; the one of the address, or one under the pointer

function buildDetails() {
  const line = (name, label, title = "") => {
    cells.set(name, make("dd"));
    return make("div", { title }, make("dt", { class: "one-line" }, label), cells.get(name));
  };
  const list = (kind, lines) => make("dl", { class: kind }, ...lines);
  const parts = about.rules.flatMap(({ field, parts: each }) => [
    make("div", { class: "rule" }, make("dt", { class: "one-line" }, field)),
    ...each.map(({ text }) => line(`${field} ${text}`, visible(text, 200), visible(text, 2000))),
  ]);
  const numbers = COLUMNS.map(({ name, unit, meaning }) =>
    line(name, make("span", {}, visible(name, 40), " ", make("small", {}, unit)), meaning),
  );
  byId("details-body").append(
    make("p", { id: "details-context", class: "context" }, HINT),
    list("place", PLACE.map((name) => line(name, name))),
    list("verdict", ["effect", "spurious", "clause"].map((name) => line(name, name))),
    list("rules", parts),
    list("numbers", numbers),
  );
  on("at", () => showDetails(rowOf(state.at)));
}

async function showDetails(row) {
  if (row < 0) return;
  shown = row;
  await load(store.names);
  if (shown !== row) return;
  const place = responseAt(row);
  const [before, after] = contextOf(row);
  const [text, effect] = [store.text(row), word("effect", row) ?? "untouched"];
  const spurious = column("spurious")[row];
  byId("details").classList.remove("empty");
  const title = make("span", { class: "piece one-line" }, spaced(text, 40));
  const short = `prob ${number(column("prob")[row])}, ${visible(effect, 20)}`;
  byId("details-title").replaceChildren(title, make("small", {}, short));
  const [left, right] = [before.slice(-80), after.slice(0, 80)].map((side) => make("span", {}, visible(side)));
  byId("details-context").replaceChildren(left, make("mark", {}, spaced(text, 12_000)), right);
  const values = {
    effect: visible(effect, 40),
    clause: visible(word("clause", row) ?? "–", 2000),
    spurious: spurious === 1 ? "yes" : spurious === 0 ? "no" : "not judged",
  };
  for (const name of PLACE) values[name] = String(place[name] ?? column(name)[row]);
  for (const { name } of COLUMNS) values[name] = number(column(name)[row]);
  for (const [name, value] of Object.entries(values)) cells.get(name).textContent = value;
  for (const { field, parts } of about.rules) {
    for (const part of parts) {
      const [sign, title] = holds(part, row);
      const cell = cells.get(`${field} ${part.text}`);
      [cell.textContent, cell.title] = [sign, title];
    }
  }
}

/* Whether a part of a rule holds for a token: a sign, and its meaning. */
function holds(part, row) {
  const held = column(part.column)[row];
  if (held === 1) return ["✓", "holds"];
  if (held === 0) return ["✗", "does not hold"];
  return ["?", "not known: it compares tokens that the page does not have, or reads a number that was not recorded"];
}

/* What is inside `container` and has a row shows it in the panel while the pointer is there. */
function explainRows(container) {
  container.addEventListener("pointerover", ({ target, pointerType }) => {
    const element = pointerType === "mouse" && target.closest("[data-row]");
    if (element) showDetails(Number(element.dataset.row));
  });
  container.addEventListener("pointerleave", () => showDetails(rowOf(state.at)));
}
