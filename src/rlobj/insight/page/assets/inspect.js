"use strict";
/* The page: its views, and the keys that work everywhere. */

const VIEWS = ["responses", "planes", "tokens"];

function drawView() {
  if (!VIEWS.includes(state.view)) [state.view] = VIEWS;
  for (const each of VIEWS) {
    byId(each).hidden = each !== state.view;
    byId(`tab-${each}`).setAttribute("aria-selected", each === state.view);
    byId(`tab-${each}`).tabIndex = each === state.view ? 0 : -1;
  }
}

function listen() {
  const toView = ({ view }) => view && go({ view }, true);
  byId("tabs").addEventListener("click", ({ target }) => toView(target.dataset));
  byId("tabs").addEventListener("keydown", ({ key }) => {
    const by = { ArrowLeft: 2, ArrowRight: 1 }[key];
    if (!by) return;
    go({ view: VIEWS[(VIEWS.indexOf(state.view) + by) % VIEWS.length] }, true);
    byId(`tab-${state.view}`).focus();
  });
  window.addEventListener("popstate", () => go(readAddress()));
  dark.addEventListener("change", () => refresh(["theme"]));
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select") || event.ctrlKey || event.metaKey) return;
    if (event.key === "/") byId("text").focus();
    else if (event.key === "n") toMatch(1, true);
    else if (event.key === "p") toMatch(-1, true);
    else return;
    event.preventDefault();
  });
}

async function start() {
  Object.assign(state, readAddress());
  buildRanges();
  const needed = ["in_phase", "effect", "spurious", "text", "position", "prob"];
  await load([...needed, "before", "after", "prompt", "read"]);
  on("view", drawView);
  buildFilter();
  refresh([]);
  await applyFilter();
  buildResponses();
  buildPlanes();
  buildTokens();
  buildDetails();
  listen();
  refresh([]);
  for (const name of new Set([...RANGED, ...store.names])) {
    await idle();
    await load([name]);
    fields.get(rangeOf(name))?.prepare();
  }
}

const idle = () => new Promise((done) => (window.requestIdleCallback ?? ((act) => setTimeout(act)))(done, { timeout: 100 }));

start();
