"use strict";
/* The figures of the report. */

(async () => {
  drawFigures(JSON.parse(new TextDecoder().decode(await unpack("figures"))));
  document.body.dataset.ready = "";
})();
