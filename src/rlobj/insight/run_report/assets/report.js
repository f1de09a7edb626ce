"use strict";
/* The figures of the report and the controls above them. */

(async () => {
  const draw = drawFigures(JSON.parse(new TextDecoder().decode(await unpack("figures"))));
  byId("controls").addEventListener("input", () => draw({ smooth: Number(byId("smooth").value), log: byId("log").checked }));
  document.body.dataset.ready = "";
})();
