"use strict";
/* The figures of the report and the controls above them. */

byId("numbers").open = !matchMedia("(max-width: 40rem)").matches;

(async () => {
  const data = JSON.parse(new TextDecoder().decode(await unpack("figures")));
  const board = drawFigures(data);
  const boxes = [...document.querySelectorAll("input[name=run]")];

  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("smooth").addEventListener("input", (event) => board.set({ smooth: +event.target.value }));
  byId("log").addEventListener("input", (event) => board.set({ log: event.target.checked }));
  byId("reset").addEventListener("click", () => board.zoom(null));
  board.onzoom = (range) => (byId("reset").disabled = range === null);
  for (const box of boxes)
    box.addEventListener("input", () => {
      const hidden = boxes.filter((each) => !each.checked).map((each) => +each.value);
      board.set({ hidden: new Set(hidden) });
    });
  document.body.dataset.ready = "";
})();
