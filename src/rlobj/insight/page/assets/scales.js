"use strict";
/* Colours of tokens by a column: from pale to blue, or from orange over pale to blue.

   A shade is in [-1, 1]; the style sheet makes a colour of it, which fits light and dark. */

const scales = new Map();

/* The number below which a share of them lies, from a sample. */
function quantile(values, share, of = (value) => value) {
  const stride = Math.ceil(values.length / 50_000);
  const sample = [];
  for (let i = 0; i < values.length; i += stride) {
    const value = of(values[i]);
    if (Number.isFinite(value)) sample.push(value);
  }
  sample.sort((a, b) => a - b);
  return sample[Math.min(sample.length - 1, Math.floor(share * sample.length))] ?? 0;
}

/* {shade: number -> [-1, 1], at: shade -> number, diverging} of a column. */
function scaleOf(name) {
  if (!scales.has(name)) scales.set(name, buildScale(name, column(name)));
  return scales.get(name);
}

function buildScale(name, values) {
  const bound = (x) => Math.max(-1, Math.min(1, x));
  if (/prob/.test(name) && !/log/.test(name)) {
    const low = Math.min(-1, Math.floor(quantile(values, 0.001, Math.log10)));
    return { shade: (x) => bound(Math.log10(x) / low), at: (s) => 10 ** (low * s) };
  }
  if (name === "ratio" || name === "factor") {
    const far = quantile(values, 0.995, (x) => Math.abs(Math.log2(x))) || 1;
    const shade = (x) => (x > 0 ? bound(Math.log2(x) / far) : x - 1);
    return { shade, at: (s) => 2 ** (far * s), diverging: true };
  }
  const far = quantile(values, 0.995, Math.abs) || 1;
  const diverging = quantile(values, 0.001) < 0;
  return { shade: (x) => bound(x / far), at: (s) => far * s, diverging };
}

function paint(element, shade) {
  element.classList.toggle("unknown", Number.isNaN(shade));
  element.classList.toggle("below", shade < 0);
  element.style.setProperty("--shade", `${Math.round(100 * Math.abs(shade || 0))}%`);
}

function drawLegend() {
  const { at, diverging } = scaleOf(state.color);
  const bar = make("span", { class: "bar" });
  for (let i = 0; i <= 20; i++) {
    const swatch = make("i");
    paint(swatch, diverging ? i / 10 - 1 : i / 20);
    bar.append(swatch);
  }
  const tick = (s) => number(Number(at(s).toPrecision(s * s === 1 ? 2 : 1)));
  const ends = (diverging ? [-1, 0, 1] : [0, 0.5, 1]).map((s) => make("span", {}, tick(s)));
  const { unit } = COLUMNS.find(({ name }) => name === state.color) ?? { unit: "" };
  byId("legend").replaceChildren(bar, make("span", { class: "ticks" }, ...ends), unit);
}
