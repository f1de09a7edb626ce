"use strict";
/* Formulas in text that a model wrote: KaTeX draws them, or they stay text if it cannot.

   typeset(element, text) shows the text at once and draws its formulas in slices of a few
   milliseconds, so that a long response can be read and closed meanwhile. Formulas are $...$,
   $$...$$, \(...\), \[...\], \begin{align}...\end{align} and the like, and a bare \boxed{...}. */

const typeset = (() => {
  const LONGEST = 4000; // characters of one formula
  const SLICE = 12; // milliseconds
  const OPENING =
    /\\\\|\\\$|\$\$?|\\\(|\\\[|\\begin\{((?:equation|align|alignat|gather|multline|CD)\*?)\}|\\(?:boxed|fbox)\s*\{/g;
  const ENDS = { "$$": "$$", "\\(": "\\)", "\\[": "\\]" };
  const OPTIONS = { throwOnError: true, trust: false, strict: "ignore", maxExpand: 500, maxSize: 20 };
  const running = new WeakMap(); // element -> the work that may still write to it

  function closingBrace(text, from, limit) {
    let depth = 1;
    for (let i = from; i < limit; i++) {
      if (text[i] === "\\") i++;
      else if (text[i] === "{") depth++;
      else if (text[i] === "}" && --depth === 0) return i;
    }
    return -1;
  }

  function closingDollar(text, from, limit) {
    for (let i = from; i < limit; i++) {
      if (text[i] === "\\") i++;
      else if (text[i] === "$") return i;
      else if (text[i] === "\n" && text[i + 1] === "\n") return -1;
    }
    return -1;
  }

  /* The formula that a mark at `start` opens, or null: {end, math, display}. */
  function formula(text, mark, start) {
    const [opening, environment] = mark;
    const from = start + opening.length;
    const limit = Math.min(text.length, from + LONGEST);
    if (opening === "$") {
      const at = closingDollar(text, from, limit);
      if (at <= from) return null;
      const math = text.slice(from, at);
      const money = /^\s|\s$/.test(math) || /\d/.test(text[at + 1] || "");
      return money && !/[\\^_={}<>]/.test(math) ? null : { end: at + 1, math, display: false };
    }
    if (environment) {
      const close = `\\end{${environment}}`;
      const at = text.slice(from, limit).indexOf(close);
      const end = from + at + close.length;
      return at < 0 ? null : { end, math: text.slice(start, end), display: true };
    }
    if (ENDS[opening]) {
      const at = text.slice(from, limit).indexOf(ENDS[opening]);
      const end = from + at + ENDS[opening].length;
      const math = text.slice(from, from + at);
      return at < 0 || !math.trim() ? null : { end, math, display: opening !== "\\(" };
    }
    if (opening.endsWith("{")) {
      const at = closingBrace(text, from, limit);
      return at < 0 ? null : { end: at + 1, math: text.slice(start, at + 1), display: false };
    }
    return null; // an escaped dollar or backslash
  }

  function pieces(text) {
    const found = [];
    let done = 0;
    OPENING.lastIndex = 0;
    for (let mark; (mark = OPENING.exec(text)); ) {
      const part = formula(text, mark, mark.index);
      if (part === null) continue;
      if (mark.index > done) found.push({ text: text.slice(done, mark.index) });
      found.push({ ...part, text: text.slice(mark.index, part.end) });
      done = part.end + (part.display && text[part.end] === "\n"); // it is on a line of its own
      OPENING.lastIndex = done;
    }
    if (done < text.length) found.push({ text: text.slice(done) });
    return found;
  }

  function draw(span, part) {
    try {
      katex.render(part.math, span, { ...OPTIONS, displayMode: part.display });
    } catch {
      span.textContent = part.text; // no formula after all, or one that KaTeX does not know
    }
  }

  function start(element, text) {
    const work = [];
    element.replaceChildren();
    for (const part of pieces(text)) {
      if (part.math === undefined) {
        element.append(part.text);
        continue;
      }
      const span = make("span", {}, part.text);
      element.append(span);
      work.push([span, part]);
    }
    return work;
  }

  return function typeset(element, text, done = () => {}) {
    const work = start(element, text);
    running.set(element, work);
    let next = 0;
    (function slice() {
      if (running.get(element) !== work) return; // the element shows another text now
      const until = performance.now() + SLICE;
      while (next < work.length && performance.now() < until) draw(...work[next++]);
      if (next < work.length) setTimeout(slice);
      else done();
    })();
  };
})();
