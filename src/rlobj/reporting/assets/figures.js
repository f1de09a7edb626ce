"use strict";
/* drawFigures(figures) draws what Python's `run_report.figures` describes into the elements that have their
   names, <figure id="figure-NAME"> with a .plot. All share a cursor, a zoom and the names that their
   legends hide.

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

function drawFigures(figures) {
  const steps = figures.flatMap(({ lines }) => lines.flatMap(({ x }) => [x[0], x.at(-1)]));
  const ends = [Math.min(...steps), Math.max(...steps)];

  function series({ name, color, dash, x, y, low, high }) {
    const type = dash.length ? dash : "solid";
    const line = (values, width, more) => (
      { name, type: "line", sampling: "minmax", data: x.map((at, i) => [at, values[i]]), symbolSize: 4, itemStyle: { color }, lineStyle: { color, width, type }, ...more }
    );
    const end = { showSymbol: false, silent: true, tooltip: { show: false } };
    const band = low ? [line(low, 0.6, end), line(high, 0.6, end)] : [];
    return [line(y, x.length > 1000 ? 1 : 1.6, { showSymbol: x.length <= 12 }), ...band];
  }

  function option({ lines, marks }) {
    const { axis, tooltip, textStyle } = chartLook();
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
      yAxis: { ...axis, axisLabel, scale: true, type: "value" },
      series: [...lines.flatMap(series), { type: "line", data: [], markLine: { symbol: "none", silent: true, label, data: events } }],
    };
  }

  const charts = figures.map((figure) => {
    const chart = chartIn(document.querySelector(`#figure-${figure.name} .plot`));
    chart.group = "figures";
    return [chart, figure];
  });
  echarts.connect("figures");
  function draw() {
    for (const [chart, figure] of charts) chart.setOption(option(figure), { replaceMerge: ["series"] });
  }
  function resize(size) {
    for (const [chart] of charts) {
      chart.resize(size);
      chart.getZr().flush(); // the sheet does not wait for the next frame
    }
  }
  addEventListener("beforeprint", () => resize({ width: 320, height: 190 })); // two on a sheet of A4 or letter
  addEventListener("afterprint", () => resize({ width: "auto", height: "auto" }));
  darkness.addEventListener("change", draw);
  draw();
}
