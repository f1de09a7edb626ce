"use strict";
/* drawFigures(data) draws the figures of Python's `figure_data` into the elements that have their
   names, <figure id="figure-NAME"> with a .plot. All share one cursor and one zoom. It returns a
   function that changes how they are drawn, given {smooth, log, hidden}: steps of a running mean,
   logarithmic axes, and a Set of hidden runs.

   Names are only set as text, in the page and on the canvas. */

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

function drawFigures({ figures, xs }) {
  const FEW = 12; // points that are drawn as dots as well
  const settings = { smooth: 0, log: false, hidden: new Set() };
  const ends = xs.reduce(([first, last], each) => [Math.min(first, each[0]), Math.max(last, each.at(-1))], [Infinity, -Infinity]);

  /* Means of the values whose places are less than half the width away; gaps stay. */
  function smoothed(places, values) {
    let from = 0;
    return values.map((value, i) => {
      while (places[i] - places[from] > settings.smooth / 2) from++;
      let [sum, count] = [0, 0]; // of this window alone: a huge value leaves no trace in others
      for (let k = from; k < places.length && places[k] - places[i] <= settings.smooth / 2; k++)
        if (values[k] !== null) [sum, count] = [sum + values[k], count + 1];
      return value === null ? null : sum / count;
    });
  }

  /* A polygon for each part of a band without a gap. */
  const band = (fill) => (params, api) => {
    if (params.dataIndexInside) return null;
    const parts = [[]];
    for (let i = 0; i < params.dataInsideLength; i++) {
      const [x, low, high] = [0, 1, 2].map((k) => api.value(k, i));
      if (Number.isFinite(low + high)) parts.at(-1).push([api.coord([x, low]), api.coord([x, high])]);
      else parts.push([]);
    }
    const points = (part) => [...part.map(([low]) => low), ...part.map(([, high]) => high).reverse()];
    const style = { fill, opacity: darkness.matches ? 0.28 : 0.18 };
    return { type: "group", children: parts.map((part) => ({ type: "polygon", shape: { points: points(part) }, style })) };
  };

  function series({ name, color, dash, ...line }, log) {
    const places = xs[line.x];
    const drawn = (values) => smoothed(places, values).map((y) => (log && y <= 0 ? null : y));
    const y = drawn(line.y);
    const curve = {
      name, type: "line", sampling: "minmax", data: places.map((x, i) => [x, y[i]]),
      showSymbol: places.length <= FEW, symbolSize: 4, itemStyle: { color },
      lineStyle: { color, width: places.length > 1000 ? 1 : 1.5, type: dash.length ? dash : "solid" },
    };
    if (!line.low) return [curve];
    const [low, high] = [drawn(line.low), drawn(line.high)];
    const data = places.map((x, i) => [x, low[i], high[i]]);
    return [{ type: "custom", silent: true, clip: true, renderItem: band(color), data, encode: { x: 0, y: [1, 2] }, tooltip: { show: false } }, curve];
  }

  function option({ lines, targets, marks }) {
    const { axis, tooltip, textStyle } = chartLook();
    const log = settings.log && !lines.some(({ y }) => y.some((each) => each < 0));
    const level = ({ y, text }) => ({ name: text, type: "line", symbol: "none", data: ends.map((x) => [x, y]), lineStyle: { color: "#888", width: 1.2, type: [2, 2] }, tooltip: { show: false } });
    const shown = lines.filter(({ run }) => !settings.hidden.has(run)).flatMap((line) => series(line, log));
    const events = marks.filter(({ run }) => !settings.hidden.has(run));
    const data = events.map(({ x, color }) => ({ xAxis: x, lineStyle: { color, type: [1, 2], width: 1.2 } }));
    const markLine = { symbol: "none", label: { show: false }, silent: true, data };
    const axisLabel = { ...axis.axisLabel, formatter: compact };
    const step = (at) => (at % 1 ? "" : compact(at));
    return {
      animation: false, textStyle,
      grid: { left: 54, right: 14, top: 10, bottom: 36 },
      tooltip: { ...tooltip, trigger: "axis", axisPointer: { label: { precision: 0 } }, order: "valueDesc", valueFormatter: compact },
      dataZoom: { type: "inside", zoomOnMouseWheel: "ctrl", preventDefaultMouseMove: false },
      xAxis: { ...axis, name: "step", nameGap: 22, min: ends[0], max: ends[1], minInterval: 1, axisLabel: { ...axisLabel, formatter: step } },
      /* Not from one power of ten to another: a curve between 0.5 and 0.9 would be flat. */
      yAxis: { ...axis, axisLabel, scale: true, type: log ? "log" : "value", ...(log && { min: "dataMin", max: "dataMax" }) },
      series: [...shown, ...targets.map(level), { type: "line", data: [], markLine }],
    };
  }

  function draw(changes) {
    Object.assign(settings, changes);
    for (const [chart, figure] of charts) chart.setOption(option(figure), { replaceMerge: ["series", "yAxis"] });
  }

  const charts = figures.map((figure) => {
    const chart = chartIn(document.querySelector(`#figure-${figure.name} .plot`));
    chart.group = "figures";
    return [chart, figure];
  });
  echarts.connect("figures");
  darkness.addEventListener("change", () => draw({}));
  draw({});
  return draw;
}
