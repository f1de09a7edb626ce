"use strict";
/* Formulas are drawn in what is opened; the boxes of verdicts hide responses. */

document.addEventListener("toggle", drawFormulas, { capture: true }); // it does not bubble
function drawFormulas({ target }) {
  for (const text of target.querySelectorAll(":scope > .text:not(.drawn)")) {
    text.classList.add("drawn");
    typeset(text, text.textContent);
  }
}

byId("filters").addEventListener("input", () => {
  const boxes = [...document.querySelectorAll("#filters input:not(:checked)")];
  const unwanted = boxes.map((box) => `.${box.value}`).join() || "none";
  for (const problem of document.querySelectorAll(".problem")) {
    const shown = [...problem.querySelectorAll(".cells > i, .response")];
    for (const part of shown) part.hidden = part.matches(unwanted);
    problem.hidden = shown.every((part) => part.hidden);
  }
});
