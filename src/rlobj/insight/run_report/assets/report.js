"use strict";
/* The figures of the report and the controls above them. */

byId("numbers").open = !matchMedia("(max-width: 40rem)").matches;

(async () => {
  const draw = drawFigures(JSON.parse(new TextDecoder().decode(await unpack("figures"))));
  const boxes = [...document.querySelectorAll("input[name=run]")];
  const hidden = () => new Set(boxes.filter(({ checked }) => !checked).map(({ value }) => Number(value)));
  const read = () => draw({ smooth: Number(byId("smooth").value), log: byId("log").checked, hidden: hidden() });
  const whole = () => echarts.getInstanceByDom(document.querySelector(".plot"))?.dispatchAction({ type: "dataZoom", start: 0, end: 100 });

  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("controls").addEventListener("input", read);
  byId("whole").addEventListener("click", whole);
  document.body.dataset.ready = "";
})();
