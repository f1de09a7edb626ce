"use strict";
/* The panel with every column of one token, in a fixed place with a fixed order. */

const PLACE = ["step", "update", "group", "rollout", "response", "began", "turn", "position", "token"];
const cells = new Map(); // name -> the element of its value
let shown = -1; // row in the panel: the one that was clicked, or one under the pointer

function buildDetails() {
  const line = (name, label, title = "") => {
    cells.set(name, make("dd"));
    return make("div", { title }, make("dt", { class: "one-line" }, label), cells.get(name));
  };
  const list = (kind, lines) => make("dl", { class: kind }, ...lines);
  const rules = about.rules.flatMap(({ field, parts: each }) => [
    make("div", { class: "rule" }, make("dt", { class: "one-line" }, field)),
    ...each.map(({ text }) => line(`${field} ${text}`, visible(text, 200), visible(text, 2000))),
  ]);
  const numbers = COLUMNS.map(({ name, unit, meaning }) =>
    line(name, make("span", {}, visible(name, 40), " ", make("small", {}, unit)), meaning),
  );
  byId("details-body").append(
    make("p", { id: "details-context", class: "context" }, "Point at a token, or click on it."),
    list("place", PLACE.map((name) => line(name, name))),
    list("verdict", ["effect", "spurious", "clause"].map((name) => line(name, name))),
    list("rules", rules),
    list("numbers", numbers),
  );
  on(["at"], () => showDetails(state.at));
}

async function showDetails(row) {
  if (row < 0) return;
  shown = row;
  await load(store.names);
  if (shown !== row) return;
  const [before, after] = contextOf(row);
  const [text, effect] = [store.text(row), word("effect", row) ?? "untouched"];
  byId("details").classList.remove("empty");
  const title = make("span", { class: "piece one-line" }, spaced(text, 40));
  const short = `prob ${number(column("prob")[row])}, ${visible(effect, 20)}`;
  byId("details-title").replaceChildren(title, make("small", {}, short));
  const [left, right] = [before.slice(-80), after.slice(0, 80)].map((side) => make("span", {}, visible(side)));
  byId("details-context").replaceChildren(left, make("mark", {}, spaced(text, 12_000)), right);
  const values = {
    ...Object.fromEntries([...PLACE, ...COLUMNS.map(({ name }) => name)].map((name) => [name, number(column(name)[row])])),
    effect: visible(effect, 40),
    clause: visible(word("clause", row) ?? "–", 2000),
    began: visible(word("began", row) ?? "–", 40),
    spurious: ["no", "yes"][column("spurious")[row]] ?? "not judged",
  };
  for (const { field, parts: each } of about.rules)
    for (const { text: rule, column: name } of each) values[`${field} ${rule}`] = ["✗", "✓"][column(name)[row]] ?? "?";
  for (const [name, value] of Object.entries(values)) cells.get(name).textContent = value;
}

/* What is inside `container` and has a row shows it in the panel while the pointer is there, and goes
   to its response when it is clicked. */
function explainRows(container) {
  const rowIn = ({ target }) => Number(target.closest("[data-row]")?.dataset.row ?? -1);
  container.addEventListener("pointerover", (event) => event.pointerType === "mouse" && showDetails(rowIn(event)));
  container.addEventListener("pointerleave", () => showDetails(state.at));
  container.addEventListener("click", (event) => rowIn(event) >= 0 && go(placeOf(rowIn(event))));
}
