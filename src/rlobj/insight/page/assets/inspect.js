"use strict";
/* The page: its views. */

function drawView() {
  for (const button of byId("views").children) {
    const { view } = button.dataset;
    byId(view).hidden = view !== state.view;
    button.setAttribute("aria-pressed", view === state.view);
  }
}

async function start() {
  buildRanges();
  await load(["in_phase", "effect", "spurious", "text", "position", "prob", "before", "after", "prompt", "read"]);
  on(["view"], drawView);
  buildFilter();
  await applyFilter();
  buildResponses();
  buildPlanes();
  buildTokens();
  buildDetails();
  byId("views").addEventListener("click", ({ target: { dataset } }) => dataset.view && go({ view: dataset.view }));
  darkness.addEventListener("change", () => refresh(["theme"]));
  refresh([]);
}

start();
