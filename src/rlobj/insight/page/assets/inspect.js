"use strict";
/* The page: its views. */

const VIEWS = ["responses", "planes", "tokens"];

function drawView() {
  if (!VIEWS.includes(state.view)) [state.view] = VIEWS;
  for (const each of VIEWS) {
    byId(each).hidden = each !== state.view;
    document.querySelector(`[data-view=${each}]`).setAttribute("aria-pressed", each === state.view);
  }
}

async function start() {
  Object.assign(state, readAddress());
  buildRanges();
  await load(["in_phase", "effect", "spurious", "text", "position", "prob", "before", "after", "prompt", "read"]);
  on("view", drawView);
  buildFilter();
  refresh([]);
  await applyFilter();
  buildResponses();
  buildPlanes();
  buildTokens();
  buildDetails();
  byId("views").addEventListener("click", ({ target: { dataset } }) => dataset.view && go({ view: dataset.view }, true));
  window.addEventListener("popstate", () => go(readAddress()));
  darkness.addEventListener("change", () => refresh(["theme"]));
  refresh([]);
}

start();
