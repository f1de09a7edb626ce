"use strict";
/* The curve of V along a response, below its text. V of a token is that of the context before it: a
   token moves V from its own to that of the next token. */

const [V, RETURN] = ["value", "return"].map((kind) => `${about.critic}_${kind}`);

let scale = null; // of all curves: from the lowest to the highest V or return

/* The curve of a response with its return, and the tokens that raise and lower V most. */
function curve({ start, end }) {
  const [values, returns] = [V, RETURN].filter(store.has).map(column);
  scale ??= [0.001, 0.999].map((share) => [values, returns ?? values].map((numbers) => quantile(numbers, share)));
  const [bottom, top] = [Math.min(...scale[0]), Math.max(...scale[1])];
  const y = (value) => (top - value) / (top - bottom || 1);
  const line = (kind, numbers, from = start, to = end) =>
    make("polyline", { class: kind, points: Array.from(numbers.subarray(from, to), (value, i) => `${from - start + i},${y(value)}`).join(" ") });
  const jumps = { rise: [0, start], fall: [0, start] }; // of V, and the token that makes it
  for (let row = start; row < end - 1; row++) {
    const change = values[row + 1] - values[row];
    if (change > jumps.rise[0]) jumps.rise = [change, row];
    if (change < jumps.fall[0]) jumps.fall = [change, row];
  }
  const made = Object.entries(jumps).filter(([, [change]]) => change);
  const notes = made.flatMap(([kind, [change, row]]) => [` · largest ${kind} `, piece(row), ` ${number(change)}`]);
  const ends = `V ${number(values[start])} → ${number(values[end - 1])}`;
  const last = end - start - 1;
  const rowAt = ({ offsetX }) => start + Math.max(0, Math.min(last, Math.round((offsetX / plot.clientWidth) * last)));
  const box = { viewBox: `0 -0.05 ${last || 1} 1.1`, preserveAspectRatio: "none", role: "img", "aria-label": `Curve of ${ends}` };
  const acts = { pointermove: (event) => showDetails(rowAt(event)), click: (event) => go(placeOf(rowAt(event))) };
  const lines = [...(returns ? [line("goal", returns)] : []), line("value", values)];
  const plot = make("svg", { ...box, ...acts }, ...lines, ...made.map(([kind, [, row]]) => line(kind, values, row, row + 2)));
  const ticks = make("span", { class: "scale" }, make("span", {}, number(top)), make("span", {}, number(bottom)));
  return make("div", { class: "curve flow" }, make("div", {}, plot, ticks), make("p", { class: "notes" }, ends, ...notes));
}
