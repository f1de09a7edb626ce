"use strict";
/* Formulas are drawn in what is opened; the boxes of verdicts hide responses. */

document.addEventListener("toggle", drawFormulas, { capture: true }); // it does not bubble
function drawFormulas({ target }) {
  const found = ":scope > .text, .problem:scope > dl dd, :scope > .response .answer";
  for (const element of target.querySelectorAll(found)) {
    if (element.classList.contains("drawn")) continue;
    element.classList.add("drawn");
    const text = element.textContent;
    const bare = !element.matches(".text") && /[\\^_]/.test(text) && !/[$]|\\[([]/.test(text);
    typeset(element, bare ? `$${text}$` : text); // a gold or an answer is a formula without dollars
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
