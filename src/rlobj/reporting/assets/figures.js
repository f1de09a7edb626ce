"use strict";
/* drawFigures(figures) draws what Python's `run_report.figures` describes into the elements that have their
   names, <figure id="figure-NAME"> with a .plot. All share a cursor, a zoom and the names that their
   legends hide. It returns a function that draws them again, given {smooth, log}: the steps of a
   running mean, and whether axes are logarithmic.

   Names are only set as text on the canvas. */

const darkness = matchMedia("(prefers-color-scheme: dark)");
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) echarts.getInstanceByDom(target)?.resize();
});

/* The chart of an element, which fits it at any size. */
function chartIn(element) {
  const drawn = echarts.getInstanceByDom(element);
  if (!drawn) resized.observe(element);
  return drawn ?? echarts.init(element, null, { renderer: "canvas" });
}

/* What all charts look like, in the colours of the page as they are now. */
function chartLook() {
  const [ink, quiet, panel, line] = ["--ink", "--quiet", "--panel", "--line"].map(css);
  const textStyle = { color: ink, fontFamily: getComputedStyle(document.body).fontFamily };
  const axis = {
    nameLocation: "middle", nameGap: 28, nameTextStyle: { color: quiet },
    axisLabel: { color: quiet, hideOverlap: true },
    axisLine: { lineStyle: { color: line } },
    splitLine: { lineStyle: { color: line, opacity: 0.6 } },
  };
  const tooltip = { renderMode: "richText", confine: true, backgroundColor: panel, borderColor: line, padding: [4, 8], textStyle: { ...textStyle, fontSize: 12 } };
  return { axis, tooltip, textStyle };
}

function compact(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size && size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
}

/* Means of the values whose places are less than half the width away; gaps stay. */
function smoothed(places, values, width) {
  let from = 0;
  return values.map((value, i) => {
    while (places[i] - places[from] > width / 2) from++;
    let [sum, count] = [0, 0]; // of this window alone: a huge value leaves no trace in others
    for (let k = from; k < places.length && places[k] - places[i] <= width / 2; k++)
      if (values[k] !== null) [sum, count] = [sum + values[k], count + 1];
    return value === null ? null : sum / count;
  });
}

function drawFigures(figures) {
  const settings = { smooth: 0, log: false };
  const steps = figures.flatMap(({ lines }) => lines.flatMap(({ x }) => [x[0], x.at(-1)]));
  const ends = [Math.min(...steps), Math.max(...steps)];

  function series({ name, color, dash, x, y, low, high }, log) {
    const type = dash.length ? dash : "solid";
    const line = (values, width, more) => {
      const drawn = smoothed(x, values, settings.smooth).map((each) => (log && each <= 0 ? null : each));
      const lineStyle = { color, width, type };
      return { name, type: "line", sampling: "minmax", data: x.map((at, i) => [at, drawn[i]]), symbolSize: 4, itemStyle: { color }, lineStyle, ...more };
    };
    const end = { showSymbol: false, silent: true, tooltip: { show: false } };
    const band = low ? [line(low, 0.6, end), line(high, 0.6, end)] : [];
    return [line(y, x.length > 1000 ? 1 : 1.6, { showSymbol: x.length <= 12 }), ...band];
  }

  function option({ lines, marks }) {
    const { axis, tooltip, textStyle } = chartLook();
    const log = settings.log && !lines.some(({ y }) => y.some((each) => each < 0));
    const events = marks.map(({ x, text, color }) => ({ xAxis: x, name: text, lineStyle: { color, type: [1, 2], width: 1.2 } }));
    const label = { formatter: "{b}", position: "insideEndTop", color: textStyle.color, fontSize: 11 };
    const last = Object.fromEntries(lines.map(({ name, y }) => [name, compact(y.findLast((each) => each !== null) ?? NaN)]));
    const axisLabel = { ...axis.axisLabel, formatter: compact };
    const step = (at) => (at % 1 ? "" : compact(at));
    return {
      animation: false, textStyle,
      grid: { left: 54, right: 14, top: 10, bottom: 64 },
      legend: { type: "scroll", bottom: 0, textStyle, inactiveColor: axis.axisLine.lineStyle.color, pageTextStyle: textStyle, formatter: (name) => `${name}  ${last[name] ?? ""}` },
      tooltip: { ...tooltip, trigger: "axis", axisPointer: { label: { precision: 0 } }, order: "valueDesc", valueFormatter: compact },
      dataZoom: { type: "inside", zoomOnMouseWheel: "ctrl", preventDefaultMouseMove: false },
      xAxis: { ...axis, name: "step", nameGap: 22, min: ends[0], max: ends[1], minInterval: 1, axisLabel: { ...axisLabel, formatter: step } },
      /* Not from one power of ten to another: a curve between 0.5 and 0.9 would be flat. */
      yAxis: { ...axis, axisLabel, scale: true, type: log ? "log" : "value", ...(log && { min: "dataMin", max: "dataMax" }) },
      series: [...lines.flatMap((line) => series(line, log)), { type: "line", data: [], markLine: { symbol: "none", silent: true, label, data: events } }],
    };
  }

  const charts = figures.map((figure) => {
    const chart = chartIn(document.querySelector(`#figure-${figure.name} .plot`));
    chart.group = "figures";
    return [chart, figure];
  });
  echarts.connect("figures");
  function draw(changes) {
    Object.assign(settings, changes);
    for (const [chart, figure] of charts) chart.setOption(option(figure), { replaceMerge: ["series", "yAxis"] });
  }
  darkness.addEventListener("change", () => draw({}));
  draw({});
  return draw;
}
