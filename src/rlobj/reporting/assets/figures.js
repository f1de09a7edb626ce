"use strict";
/* drawFigures(data) draws the figures of Python's `figure_data` into the elements that have their
   names, <figure id="figure-NAME"> with a .plot and a .legend, when they come into view. All share
   one cursor and one zoom. It returns {set}: set({smooth, log, hidden, range}) changes what is
   drawn: steps of a running mean, a logarithmic axis, a Set of hidden runs, and [first, last] of
   the x axis or null.

   Names are only set as text, in the page and on the canvas. */

const drawFigures = (() => {
  const FEW = 12; // points that are drawn as dots as well
  const GRID = { left: 54, right: 14, top: 10, bottom: 36 };
  /* Not from one power of ten to another: a curve between 0.5 and 0.9 would be flat. */
  const LOG = { type: "log", min: "dataMin", max: "dataMax" };
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function swatch(color, dash) {
    const template = make("template"); // no text of a run comes in here
    const path = `<path d="M0 4H24" stroke="${color}" stroke-dasharray="${dash.join(" ")}"/>`;
    template.innerHTML = `<svg viewBox="0 0 24 8" class="swatch">${path}</svg>`;
    return template.content.firstChild;
  }

  function compact(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e6 || (size && size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e");
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
  }

  /* The index of the place that is nearest to x. */
  function nearest(xs, x) {
    let low = 0;
    let high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  }

  /* Means of the values whose places are less than half the width away; gaps stay. */
  function smoothed(xs, ys, width) {
    if (!width || !ys) return ys;
    let from = 0;
    return ys.map((y, i) => {
      while (xs[i] - xs[from] > width / 2) from++;
      let [sum, count] = [0, 0]; // of this window alone: a huge value leaves no trace in others
      for (let k = from; k < xs.length && xs[k] - xs[i] <= width / 2; k++)
        if (ys[k] !== null) [sum, count] = [sum + ys[k], count + 1];
      return y === null ? null : sum / count;
    });
  }

  /* One polygon for each part of the band without a gap. */
  function band(color) {
    return (params, api) => {
      if (params.dataIndexInside) return null;
      const parts = [[]];
      for (let i = 0; i < params.dataInsideLength; i++) {
        const [x, low, high] = [0, 1, 2].map((k) => api.value(k, i));
        if (Number.isFinite(low + high)) parts.at(-1).push([api.coord([x, low]), api.coord([x, high])]);
        else parts.push([]);
      }
      const style = { fill: color, opacity: dark.matches ? 0.28 : 0.18 };
      const children = parts.map((part) => {
        const points = [...part.map((p) => p[0]), ...part.map((p) => p[1]).reverse()];
        return { type: "polygon", shape: { points }, style };
      });
      return { type: "group", children };
    };
  }

  class Chart {
    constructor(board, figure, element) {
      Object.assign(this, { board, figure, element, plot: element.querySelector(".plot") });
      const all = figure.lines.map((line) => board.data.xs[line.x]);
      this.xs = all.reduce((a, b) => (b.length > a.length ? b : a)); // of the longest line
      this.extent = [Math.min(...all.map((xs) => xs[0])), Math.max(...all.map((xs) => xs.at(-1)))];
      this.hidden = new Set(); // numbers of lines
      this.signed = figure.lines.some((line) => line.y.some((y) => y < 0));
      this.log = false;
      this.cursor = make("div", { class: "cursor", hidden: "" });
      this.selection = make("div", { class: "selection", hidden: "" });
      element.tabIndex = 0;
      element.addEventListener("keydown", (event) => this.key(event));
      this.buildLegend();
    }

    color = (number) => this.board.data.colors[number % this.board.data.colors.length];
    dash = (number) => this.board.data.dashes[number % this.board.data.dashes.length];

    buildLegend() {
      const rows = this.figure.lines.map((line, i) => {
        const click = ({ currentTarget }) => {
          if (!this.hidden.delete(i)) this.hidden.add(i);
          currentTarget.setAttribute("aria-pressed", !this.hidden.has(i));
          this.draw();
        };
        const name = make("span", { class: "one-line", title: line.name }, line.name);
        const look = swatch(this.color(line.color), this.dash(line.dash));
        line.value = make("output");
        const button = { type: "button", class: "plain", "aria-pressed": true, click };
        return make("li", {}, make("button", button, look, name, line.value));
      });
      for (const target of this.figure.targets)
        rows.push(make("li", {}, swatch("#888", [2, 2]), `${target.text}: ${compact(target.low)}`));
      for (const mark of this.figure.marks) {
        const text = mark.link ? make("a", { href: `#${mark.link}` }, mark.text) : mark.text;
        rows.push(make("li", {}, swatch(this.color(mark.run), [1, 2]), text));
      }
      this.element.querySelector(".legend").append(...rows);
      const click = () => this.setLog(!this.log);
      this.switch = make("button", { type: "button", class: "log", "aria-pressed": false, click }, "log");
      if (!this.signed) this.element.querySelector("figcaption").append(this.switch);
      this.point(null);
    }

    setLog(log) {
      this.log = log && !this.signed; // a logarithmic axis has no negative values
      this.switch.setAttribute("aria-pressed", log);
      this.draw();
    }

    /* Draw now if the figure is in view, otherwise when it comes into view. */
    draw() {
      this.stale = true;
      if (!this.seen) return;
      this.stale = false;
      this.chart ??= this.open();
      this.chart.setOption(this.option(), { notMerge: true });
      this.point(this.board.at);
    }

    open() {
      const chart = echarts.init(this.plot, null, { renderer: "canvas" });
      this.plot.append(this.cursor, this.selection);
      this.plot.addEventListener("pointermove", (event) => this.moved(event));
      this.plot.addEventListener("pointerdown", (event) => {
        this.plot.setPointerCapture(event.pointerId); // a drag may end outside
        this.start = this.place(event);
      });
      this.plot.addEventListener("pointerup", (event) => this.released(event));
      this.plot.addEventListener("pointerleave", () => this.board.point(null));
      this.plot.addEventListener("pointercancel", () => this.select(null));
      this.plot.addEventListener("dblclick", () => this.board.zoom(null));
      return chart;
    }

    option() {
      const [ink, line] = ["--quiet", "--line"].map(css);
      const { board, figure } = this;
      const axis = {
        axisLabel: { color: ink, formatter: compact, hideOverlap: true },
        axisLine: { lineStyle: { color: line } },
        splitLine: { lineStyle: { color: line, opacity: 0.6 } },
      };
      const range = board.range ?? this.extent;
      const x = { min: range[0], max: range[1], nameLocation: "middle", nameGap: 22, name: figure.x };
      const whole = { minInterval: 1, axisLabel: { ...axis.axisLabel, formatter: (at) => (at % 1 ? "" : compact(at)) } };
      return {
        animation: false,
        grid: GRID,
        xAxis: { ...axis, ...x, ...(figure.x === "step" && whole), type: figure.log_x ? "log" : "value", nameTextStyle: { color: ink } },
        yAxis: { ...axis, scale: true, ...(this.log && LOG) },
        series: [...figure.lines.flatMap((each, i) => this.series(each, i)), ...this.targets(range)],
      };
    }

    /* Lines from end to end, so that the axis reaches them. */
    targets(range) {
      const ends = this.figure.targets.flatMap(({ low, high }) => [...new Set([low, high])]);
      const look = { symbol: "none", silent: true, lineStyle: { color: "#888", width: 1.2, type: [2, 2] } };
      return ends.map((y) => ({ type: "line", data: range.map((x) => [x, y]), ...look }));
    }

    series(line, i) {
      const { board, figure } = this;
      if (this.hidden.has(i) || board.hidden.has(line.run)) return [];
      const xs = board.data.xs[line.x];
      const range = board.range ?? this.extent;
      const [from, to] = [xs.findLastIndex((x) => x <= range[0]), xs.findIndex((x) => x >= range[1])];
      const near = (points) => points.slice(Math.max(from, 0), to < 0 ? undefined : to + 1);
      const drawn = (ys) =>
        smoothed(xs, ys, board.smooth)?.map((y) => (this.log && y <= 0 ? null : y));
      const [color, dash] = [this.color(line.color), this.dash(line.dash)];
      line.shown = drawn(line.y);
      const curve = {
        type: "line", silent: true, sampling: "minmax",
        data: near(xs.map((x, k) => [x, line.shown[k]])), // with the points next to the range
        showSymbol: xs.length <= FEW, symbolSize: 4, itemStyle: { color },
        lineStyle: { color, width: xs.length > 1000 ? 1 : 1.5, type: dash.length ? dash : "solid" },
        markLine: i ? undefined : this.marks(),
      };
      if (!line.low) return [curve];
      const [low, high] = [drawn(line.low), drawn(line.high)];
      const around = {
        type: "custom", silent: true, clip: true, progressive: 0, renderItem: band(color),
        data: near(xs.map((x, k) => [x, low[k], high[k]])), encode: { x: 0, y: [1, 2] },
      };
      return [around, curve];
    }

    marks() {
      const marks = this.figure.marks.filter((mark) => !this.board.hidden.has(mark.run));
      const look = (mark) => ({ color: this.color(mark.run), type: [1, 2], width: 1.2 });
      const data = marks.map((mark) => ({ xAxis: mark.x, lineStyle: look(mark) }));
      return { symbol: "none", label: { show: false }, silent: true, animation: false, data };
    }

    /* The values at a place, or the last ones, and the cursor there. */
    point(x) {
      for (const line of this.figure.lines) {
        const xs = this.board.data.xs[line.x];
        const out = x !== null && (x < xs[0] || x > xs.at(-1));
        const at = x === null ? xs.length - 1 : nearest(xs, x);
        line.value.textContent = out ? "–" : compact((line.shown ?? line.y)[at]);
      }
      if (!this.chart) return;
      const left = x === null ? NaN : this.chart.convertToPixel({ xAxisIndex: 0 }, x);
      this.cursor.hidden = !(left >= GRID.left && left <= this.plot.clientWidth - GRID.right + 1);
      this.cursor.style.left = `${left}px`;
      this.cursor.dataset.x = x === null ? "" : compact(x);
      this.cursor.classList.toggle("late", left > this.plot.clientWidth / 2);
    }

    /* The place of the curve that is nearest to the pointer. */
    place(event) {
      const pixel = event.clientX - this.plot.getBoundingClientRect().left;
      return this.xs[nearest(this.xs, this.chart.convertFromPixel({ xAxisIndex: 0 }, pixel))];
    }

    moved(event) {
      const x = this.place(event);
      this.board.point(x);
      this.select(event.buttons && this.start !== undefined ? [this.start, x] : null);
    }

    released(event) {
      const ends = [this.start, this.place(event)].sort((a, b) => a - b);
      this.select(null);
      this.start = undefined;
      if (ends[0] < ends[1]) this.board.zoom(ends);
    }

    select(ends) {
      this.selection.hidden = ends === null;
      if (ends === null) return;
      const pixels = ends.map((x) => this.chart.convertToPixel({ xAxisIndex: 0 }, x));
      this.selection.style.left = `${Math.min(...pixels)}px`;
      this.selection.style.width = `${Math.abs(pixels[0] - pixels[1])}px`;
    }

    key(event) {
      if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
      const { board, xs } = this;
      const [first, last] = board.range ?? [xs[0], xs.at(-1)];
      const now = nearest(xs, board.at ?? last);
      const step = event.shiftKey ? Math.ceil(xs.length / 20) : 1;
      const middle = xs[now];
      const zoom = (by) => [Math.max(xs[0], middle - (middle - first) * by), Math.min(xs.at(-1), middle + (last - middle) * by)];
      if (event.key === "ArrowLeft") board.point(xs[Math.max(now - step, 0)]);
      else if (event.key === "ArrowRight") board.point(xs[Math.min(now + step, xs.length - 1)]);
      else if (event.key === "+" || event.key === "=") board.zoom(zoom(0.5));
      else if (event.key === "-") board.zoom(zoom(2));
      else if (event.key === "0") board.zoom(null);
      else if (event.key === "l") this.setLog(!this.log);
      else return;
      event.preventDefault();
    }
  }

  class Board {
    constructor(data) {
      Object.assign(this, { data, smooth: 0, range: null, hidden: new Set(), at: null });
      this.onzoom = () => {};
      this.charts = new Map();
      const seen = new IntersectionObserver((entries) => this.look(entries), { rootMargin: "200px" });
      const resized = new ResizeObserver((entries) => {
        for (const { target } of entries) this.charts.get(target.parentElement).chart?.resize();
      });
      for (const figure of data.figures) {
        const element = document.getElementById(`figure-${figure.name}`);
        const chart = new Chart(this, figure, element);
        this.charts.set(element, chart);
        seen.observe(element);
        resized.observe(chart.plot);
      }
      dark.addEventListener("change", () => this.draw());
      addEventListener("beforeprint", () => {
        for (const chart of this.charts.values()) chart.seen = true;
        this.draw();
      });
    }

    look(entries) {
      for (const { target, isIntersecting } of entries) {
        const chart = this.charts.get(target);
        chart.seen = isIntersecting;
        if (isIntersecting && chart.stale !== false) chart.draw();
        else if (isIntersecting) chart.point(this.at);
      }
    }

    draw() {
      for (const chart of this.charts.values()) chart.draw();
    }

    set(changes) {
      Object.assign(this, changes);
      if ("log" in changes) for (const chart of this.charts.values()) chart.setLog(changes.log);
      else this.draw();
    }

    zoom(range) {
      this.set({ range: range && range[0] < range[1] ? range : null });
      this.onzoom(this.range);
    }

    point(x) {
      this.at = x;
      for (const chart of this.charts.values()) if (chart.seen) chart.point(x);
    }
  }

  return (data) => new Board(data);
})();
