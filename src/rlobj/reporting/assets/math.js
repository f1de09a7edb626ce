"use strict";
/* Formulas in text that a model wrote: KaTeX draws them, or they stay text if it cannot.

   typeset(element, text) shows the text at once and draws its formulas in slices of a few
   milliseconds, so that a long response can be read and closed meanwhile. Formulas are $...$,
   $$...$$, \(...\), \[...\], \begin{align}...\end{align} and the like, and a bare \boxed{...}. */

const typeset = (() => {
  const SLICE = 12; // milliseconds
  const OPTIONS = { throwOnError: true, trust: false, strict: "ignore", maxExpand: 500, maxSize: 20 };
  const braces = (inner) => String.raw`\{(?:\\[^]|[^{}\\]${inner}){0,4000}\}`;
  const FORMULA = new RegExp(
    [
      String.raw`\\\\|\\\$`, // a line break or a dollar, and no formula
      String.raw`\$\$([^]{0,4000}?)\$\$`,
      String.raw`\\\[([^]{0,4000}?)\\\]`,
      String.raw`(\\begin\{((?:equation|align|alignat|gather|multline|CD)\*?)\}[^]{0,4000}?\\end\{\4\})`,
      String.raw`\\\(([^]{0,4000}?)\\\)`,
      String.raw`(\\(?:boxed|fbox)\s*` + braces("|" + braces("|" + braces("|" + braces("")))) + ")",
      String.raw`\$\$`, // not closed
      String.raw`\$((?:\\[^]|[^\\$\n]|\n(?!\n)){1,4000})\$`,
    ].join("|"),
    "g",
  );
  const running = new WeakMap(); // element -> the work that may still write to it

  /* Texts, and formulas with their {math, display}. */
  function pieces(text) {
    const found = [];
    let done = 0;
    FORMULA.lastIndex = 0;
    for (let mark; (mark = FORMULA.exec(text)); ) {
      const [whole, dollars, bracket, environment, , parenthesis, box, dollar] = mark;
      const [block, math] = [dollars ?? bracket ?? environment, parenthesis ?? box ?? dollar];
      const end = mark.index + whole.length;
      const money = dollar && (/^\s|\s$/.test(dollar) || /\d/.test(text[end])) && !/[\\^_={}<>]/.test(dollar);
      if (money) FORMULA.lastIndex = mark.index + 1;
      if (money || !(block ?? math)?.trim()) continue;
      if (mark.index > done) found.push({ text: text.slice(done, mark.index) });
      found.push({ text: whole, math: block ?? math, display: block !== undefined });
      done = end + (block !== undefined && text[end] === "\n"); // it is on a line of its own
      FORMULA.lastIndex = done;
    }
    if (done < text.length) found.push({ text: text.slice(done) });
    return found;
  }

  function draw(span, { math, display, text }) {
    try {
      katex.render(math, span, { ...OPTIONS, displayMode: display });
    } catch {
      span.textContent = text; // no formula after all, or one that KaTeX does not know
    }
  }

  return function typeset(element, text) {
    const parts = pieces(text).map((part) => [make("span", {}, part.text), part]);
    element.replaceChildren(...parts.map(([span]) => span));
    const work = parts.filter(([, { math }]) => math !== undefined);
    running.set(element, work);
    (function slice() {
      if (running.get(element) !== work) return; // the element shows another text now
      const until = performance.now() + SLICE;
      while (work.length && performance.now() < until) draw(...work.shift());
      if (work.length) setTimeout(slice);
    })();
  };
})();
