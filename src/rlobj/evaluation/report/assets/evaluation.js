"use strict";
/* The grid of problems and samples, its filters, and the reader of responses.

   Texts are only set as text: nothing that a model wrote becomes markup. A response is parsed,
   searched and drawn only when it is needed. */

(() => {
  const { benchmarks, verdicts } = JSON.parse(byId("data").textContent);
  const texts = new Map();
  const rows = []; // {b, p, problem, element, cells, shown: [sample indices]}
  let current = null; // what the reader shows: {row, s, cell}

  function textsOf(b, p) {
    const key = `texts-${b}-${p}`;
    if (!texts.has(key)) texts.set(key, JSON.parse(byId(key).textContent));
    return texts.get(key);
  }

  /* A response as one text; a conversation is a list of turns. */
  function plain(response = "") {
    if (!Array.isArray(response)) return response;
    return response.map(({ text, observation }) => `${text}\n${observation}`).join("\n");
  }

  // The grid

  function shareText(share, measure) {
    if (share === null) return "–";
    return measure === "percent right" ? (100 * share).toFixed(0) : share.toFixed(3);
  }

  function buildRow(b, p, problem, name, measure) {
    const cells = [...problem.verdicts].map((letter, s) => {
      const title = `sample ${problem.samples[s]}: ${verdicts[letter]}`;
      const texts = { title, "aria-label": `${problem.id}, ${title}` };
      return make("span", { role: "gridcell", tabindex: -1, class: `cell ${letter}`, "data-s": s, ...texts });
    });
    const id = make("span", { class: "id one-line", title: problem.id }, name);
    const share = make("span", { class: "share", title: measure }, shareText(problem.share, measure));
    const head = make("div", { class: "head", role: "rowheader" }, id, share);
    const prompt = problem.prompt.replace(/\s+/g, " ").slice(0, 300);
    const snippet = make("div", { class: "snippet one-line", "aria-hidden": true }, prompt);
    const grid = make("div", { class: "cells", role: "presentation" }, ...cells);
    const row = { b, p, problem, cells, shown: [...cells.keys()] };
    const click = ({ target }) => {
      const cell = target.closest(".cell");
      const s = cell ? Number(cell.dataset.s) : row.shown[0];
      if (s !== undefined) open(row, s);
    };
    row.element = make("div", { class: "row", role: "row", click }, head, grid, snippet);
    rows.push(row);
    return row.element;
  }

  function buildGrids() {
    benchmarks.forEach((benchmark, b) => {
      const grid = byId(`b${b}`).querySelector(".grid");
      // Ids differ at their ends.
      const ids = benchmark.problems.map(({ id }) => id);
      const folder = ids[0]?.match(/^.*\//)?.[0] ?? "";
      const shared = ids.every((id) => id.startsWith(folder)) ? folder.length : 0;
      const names = ids.map((id) => id.slice(shared).replace(/^.+(?=.{31}$)/s, "…"));
      grid.style.setProperty("--name", `${Math.max(...names.map((name) => name.length))}ch`);
      const rowOf = (problem, p) => buildRow(b, p, problem, names[p], benchmark.measure);
      grid.append(...benchmark.problems.map(rowOf));
      grid.querySelector(".cell")?.setAttribute("tabindex", 0);
      grid.addEventListener("keydown", (event) => moveInGrid(event, b));
      grid.addEventListener("focusin", (event) => {
        grid.querySelector('.cell[tabindex="0"]')?.setAttribute("tabindex", -1);
        event.target.setAttribute("tabindex", 0);
      });
    });
  }

  /* The arrows lead through the responses that are shown, and Enter opens one. */
  function moveInGrid(event, b) {
    const rows = visibleRows().filter((row) => row.b === b);
    const places = rows.flatMap((row) => row.cells.map((cell, s) => ({ row, s, cell })));
    const at = places.findIndex(({ cell }) => cell === event.target);
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (at < 0 || !(by || event.key === "Enter")) return;
    if (by) places[at + by]?.cell.focus();
    else open(places[at].row, places[at].s);
    event.preventDefault();
  }

  // Filters

  const matcher = (query) =>
    query && new RegExp(query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");

  function matching(row, found, wanted) {
    const { id, prompt, gold, answers, verdicts: letters } = row.problem;
    const all = !found || [id, prompt, gold].some((text) => found.test(text));
    const stored = all ? null : textsOf(row.b, row.p);
    const has = (s) => all || found.test(answers[s] ?? "") || found.test(plain(stored[s]));
    return [...row.cells.keys()].filter((s) => wanted.has(letters[s]) && has(s));
  }

  function filter() {
    const found = matcher(byId("query").value.trim());
    const which = byId("which").selectedIndex - 1;
    const boxes = [...document.querySelectorAll("input[name=verdict]:checked")];
    const wanted = new Set(boxes.map((box) => box.value));
    for (const row of rows) {
      row.shown = which < 0 || which === row.b ? matching(row, found, wanted) : [];
      const inside = new Set(row.shown);
      row.cells.forEach((cell, s) => cell.classList.toggle("out", !inside.has(s)));
      row.element.hidden = row.shown.length === 0;
    }
    const isSeen = (b) => rows.some((row) => row.b === b && !row.element.hidden);
    benchmarks.forEach((_, b) => (byId(`b${b}`).hidden = !isSeen(b)));
    const sum = (of) => rows.reduce((n, row) => n + row[of].length, 0);
    const counts = [sum("shown"), sum("cells"), visibleRows().length, rows.length];
    const [shown, responses, some, problems] = counts.map((count) => count.toLocaleString("en"));
    byId("found").textContent = `${shown} of ${responses} responses, ${some} of ${problems} problems`;
  }

  function sort() {
    const direction = Number(byId("order").value);
    const harder = (x, y) => direction * (x.problem.share - y.problem.share);
    rows.sort((x, y) => x.b - y.b || harder(x, y) || x.p - y.p);
    for (const row of rows) row.element.parentElement.append(row.element);
  }

  const visibleRows = () => rows.filter((row) => !row.element.hidden);

  // The reader

  function answerElement(answer, boxed) {
    if (answer === null) return make("span", { class: "none" }, "none");
    const element = make("span", { class: "answer", title: answer });
    typeset(element, boxed && !/[$]|\\[([]/.test(answer) ? `$${answer}$` : answer);
    return element;
  }

  function open(row, s) {
    const { problem } = row;
    const letter = problem.verdicts[s];
    const length = problem.tokens[s];
    current = { row, s };
    byId("reader-title").textContent =
      `${benchmarks[row.b].name} · ${problem.id} · sample ${problem.samples[s]}`;
    const facts = [
      ["verdict", make("span", { class: `badge ${letter}` }, verdicts[letter])],
      ["answer", answerElement(problem.answers[s], true)],
      ["gold", answerElement(problem.gold, true)],
      ["reward", String(problem.rewards[s] ?? "none")],
      ["reason", problem.reasons[s]],
      ["tokens", length === null ? "unknown" : length.toLocaleString("en")],
      ["end", { stop: "stopped", length: "cut at the limit" }[problem.finishes[s]] ?? "unknown"],
      ["seed", problem.seeds[s]],
    ].map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
    byId("verdict").replaceChildren(...facts);
    typeset(byId("problem"), problem.prompt);
    showResponse();
    if (!byId("reader").open) byId("reader").showModal();
    byId("reader").scrollTop = 0;
    byId("reader-title").focus({ preventScroll: true });
  }

  function showResponse() {
    const { row, s } = current;
    const text = textsOf(row.b, row.p)[s];
    const element = byId("response");
    element.classList.toggle("missing", text === undefined);
    if (text === undefined) {
      typeset(element, "Not in this page; see samples.jsonl.");
    } else if (Array.isArray(text)) {
      typeset(element, "");
      element.replaceChildren(...text.flatMap(turnElements));
    } else if (byId("source").checked) {
      typeset(element, ""); // ends what may still be drawn
      element.textContent = text;
    } else {
      typeset(element, text);
    }
  }

  /* A turn of the policy, and what the environment answered. */
  function turnElements({ text, observation, note }, number) {
    const policy = make("div", { class: "said" });
    typeset(policy, byId("source").checked ? "" : text);
    if (byId("source").checked) policy.textContent = text;
    const head = make("h4", {}, `policy, turn ${number}`, make("small", {}, note));
    if (!observation) return [head, policy];
    return [head, policy, make("h4", {}, "environment"), make("pre", { class: "heard" }, observation)];
  }

  function step(by) {
    const all = visibleRows().flatMap((row) => row.shown.map((s) => ({ row, s })));
    const at = all.findIndex(({ row, s }) => row === current.row && s === current.s);
    const next = all[at + by];
    if (next) open(next.row, next.s);
  }

  function listen() {
    let waiting = 0;
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("filters").addEventListener("input", (event) => {
      if (event.target.id === "order") sort();
      clearTimeout(waiting);
      waiting = setTimeout(filter, event.target.id === "query" ? 150 : 0);
    });
    const reader = byId("reader");
    byId("previous").addEventListener("click", () => step(-1));
    byId("next").addEventListener("click", () => step(1));
    byId("close").addEventListener("click", () => reader.close());
    byId("source").addEventListener("change", showResponse);
    reader.addEventListener("click", (event) => {
      if (event.target === reader) reader.close(); // beside it, on the backdrop
    });
    reader.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by && !event.altKey && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        step(by);
      }
    });
    reader.addEventListener("close", () => current.row.cells[current.s].focus());
  }

  buildGrids();
  filter();
  listen();
})();
