// The values of rules on the rows of a store, equal to the bit to rlobj's own.
//
// Numbers have single precision, as in Python; the ids `response` and `group` need double precision.
// Values are {data, state}: data of one element hold everywhere. state is 0 where a number is known,
// UNDEFINED where its population is empty or the page does not know it, and WRONG where it is NaN or
// infinite; null = known everywhere. The data of a rule are 0 false, 1 true, UNDEFINED or WRONG.

(() => {
  const [UNDEFINED, WRONG] = [2, 3];
  const UPDATE = 0, RESPONSE = 1, TOKEN = 2;
  const round = Math.fround;
  const exactPowers = (round) => ({
    [-2]: (x) => 1 / round(x * x), [-1]: (x) => 1 / x, 0: () => 1, 0.5: Math.sqrt,
    1: (x) => x, 2: (x) => x * x, 3: (x) => round(x * x) * x,
  });
  const EXACT = [exactPowers(round), exactPowers((x) => x)]; // single and double precision

  function power(x, y) {
    if (y === 0) return 1;
    const size = round(Math.exp(y * Math.log(Math.abs(x))));
    if (!(x < 0)) return size;
    return y % 1 === 0 ? (y % 2 ? -size : size) : NaN;
  }

  const FUNCTIONS = {
    "**": power, abs: Math.abs, exp: (x) => round(Math.exp(x)), log: (x) => round(Math.log(x)),
    sqrt: Math.sqrt, sign: Math.sign, minimum: (x, y) => Math.min(x, y),
    maximum: (x, y) => Math.max(x, y), clip: (x, low, high) => Math.min(Math.max(x, low), high),
    "-x": (x) => -x, "~": (x) => (x < UNDEFINED ? 1 - x : x),
  };
  // z = x operator y. A loop for each is much faster than one that calls a function; s and t are 0
  // for a number that holds everywhere, else 1.
  const LOOPS = {
    "+": (z, x, y, s, t) => { for (let i = 0; i < z.length; i++) z[i] = x[i * s] + y[i * t]; },
    "-": (z, x, y, s, t) => { for (let i = 0; i < z.length; i++) z[i] = x[i * s] - y[i * t]; },
    "*": (z, x, y, s, t) => { for (let i = 0; i < z.length; i++) z[i] = x[i * s] * y[i * t]; },
    "/": (z, x, y, s, t) => { for (let i = 0; i < z.length; i++) z[i] = x[i * s] / y[i * t]; },
    "<": (z, x, y, s, t) => { for (let i = 0; i < z.length; i++) z[i] = +(x[i * s] < y[i * t]); },
    "<=": (z, x, y, s, t) => { for (let i = 0; i < z.length; i++) z[i] = +(x[i * s] <= y[i * t]); },
    ">": (z, x, y, s, t) => { for (let i = 0; i < z.length; i++) z[i] = +(x[i * s] > y[i * t]); },
    ">=": (z, x, y, s, t) => { for (let i = 0; i < z.length; i++) z[i] = +(x[i * s] >= y[i * t]); },
    "&": (z, x, y, s, t) => {
      for (let i = 0; i < z.length; i++) z[i] = x[i * s] && y[i * t] && Math.max(x[i * s], y[i * t]);
    },
    "|": (z, x, y, s, t) => {
      for (let i = 0; i < z.length; i++)
        z[i] = x[i * s] === 1 || y[i * t] === 1 ? 1 : Math.max(x[i * s], y[i * t]);
    },
  };

  // ceil or floor of fraction·n, with the fraction as the decimal that it is written as; "linear" is
  // floor(fraction·(n − 1)) + 1.
  function share(fraction, n, rounding) {
    if (rounding === "linear") return share(fraction, n - 1, "floor") + 1;
    const [digits, exponent] = fraction.toExponential().split("e");
    const [first, rest = ""] = digits.split(".");
    const places = rest.length - Number(exponent);
    const whole = BigInt(first + rest) * BigInt(n);
    if (places <= 0) return Number(whole * 10n ** BigInt(-places));
    const unit = 10n ** BigInt(places);
    return Number(rounding === "ceil" ? (whole + unit - 1n) / unit : whole / unit);
  }

  // The sum of some numbers, rounded once (Shewchuk 1997, as math.fsum).
  function exactSum(values, from, to) {
    const partials = [];
    for (let i = from; i < to; i++) {
      let x = values[i], kept = 0;
      for (let j = 0; j < partials.length; j++) {
        let y = partials[j];
        if (Math.abs(x) < Math.abs(y)) [x, y] = [y, x];
        const high = x + y, low = y - (high - x);
        if (low) partials[kept++] = low;
        x = high;
      }
      partials.length = kept;
      partials.push(x);
    }
    let n = partials.length, high = n ? partials[--n] : 0, low = 0;
    while (n) {
      const x = high, y = partials[--n];
      high = x + y;
      low = y - (high - x);
      if (low) break;
    }
    if (n && low && low < 0 === partials[n - 1] < 0) {
      const twice = 2 * low, x = high + twice;
      if (twice === x - high) high = x;
    }
    return high;
  }

  class Evaluation {
    constructor(store, wide) {
      [this.store, this.wide] = [store, wide];
      this.Floats = wide ? Float64Array : Float32Array;
      this.sizes = [store.updates.length, store.responses.length, store.size];
    }

    // The values of a node at its own level, or spread over a finer one.
    at(node, level) {
      const values = this[node.kind](node);
      if (node.level >= level || values.data.length === 1) return values;
      const spread = (x) => x && this.store.spread(x, node.level, level);
      return { data: spread(values.data), state: spread(values.state) };
    }

    // A function of the values of some parts; where one of them is not known, neither is it.
    map(node, name, Kind = this.Floats, apply = FUNCTIONS[name]) {
      const values = node.parts.map((part) => this.at(part, node.level));
      const n = Math.max(...values.map(({ data }) => data.length));
      const [x, y = x, z = x] = values.map(({ data }) => data);
      const [s, t, u] = [x, y, z].map((each) => (each.length > 1 ? 1 : 0));
      const data = new Kind(n);
      if (LOOPS[name]) LOOPS[name](data, x, y, s, t);
      else for (let i = 0; i < n; i++) data[i] = apply(x[i * s], y[i * t], z[i * u]);
      let state = null;
      for (const { state: own } of values) {
        if (!own) continue;
        state ??= new Uint8Array(n);
        const step = own.length > 1 ? 1 : 0;
        for (let i = 0; i < n; i++) if (own[i * step] > state[i]) state[i] = own[i * step];
      }
      return { data, state };
    }

    // Numbers that are infinite become WRONG, and those that are NaN, too, unless it means null.
    finite({ data, state }, nan = WRONG) {
      for (let i = 0; i < data.length; i++) {
        if (data[i] - data[i] === 0 || state?.[i]) continue;
        state ??= new Uint8Array(data.length);
        state[i] = data[i] === data[i] ? WRONG : nan;
      }
      return { data, state };
    }

    constant(node) {
      return { data: new this.Floats([node.value]), state: null };
    }

    controlled(node) {
      return this.known(this.Floats.from(this.store.updates, (each) => each.state?.[node.name] ?? NaN));
    }

    known(data) {
      return this.finite({ data, state: null }, UNDEFINED);
    }

    column(node) {
      const { name } = node;
      if (name === "covariance") return this.covariance();
      const column = this.store[node.level === RESPONSE ? "perResponse" : "column"](name);
      return this.known(column instanceof this.Floats ? column : new this.Floats(column));
    }

    // (A − mean A)·(l − mean l), with means over each whole update.
    covariance() {
      const data = new this.Floats(this.store.size).fill(NaN);
      const [a, l] = ["advantage", "logprob"].map((name) => this.store.column(name));
      for (const { whole, start, end } of this.store.updates) {
        if (!whole) continue;
        const means = [a, l].map((x) => round(exactSum(x, start, end) / (end - start)));
        for (let i = start; i < end; i++)
          data[i] = round(a[i] - means[0]) * round(l[i] - means[1]);
      }
      return this.known(data);
    }

    arithmetic(node) {
      if (node.operator !== "**") return this.finite(this.map(node, node.operator));
      const exact = EXACT[Number(this.wide)];
      const exponents = node.parts[1].level > UPDATE ? [] : this.at(node.parts[1], UPDATE).data;
      const apply = (x, y) => (exact[y] ?? power)(x, y);
      return this.finite(this.map(node, "**", this.Floats, exponents.some((y) => exact[y]) ? apply : power));
    }

    function(node) {
      return this.finite(this.map(node, node.name));
    }

    negative(node) {
      return this.map(node, "-x");
    }

    compare(node) {
      const { data, state } = this.map(node, node.operator, Uint8Array);
      if (state) for (let i = 0; i < data.length; i++) if (state[i]) data[i] = state[i];
      return { data, state: null };
    }

    logic(node) {
      return this.map(node, node.operator, Uint8Array);
    }

    not(node) {
      return this.map(node, "~", Uint8Array);
    }

    when(node) {
      const [rule, ...cases] = node.parts.map((part) => this.at(part, node.level));
      const n = Math.max(...[rule, ...cases].map(({ data }) => data.length));
      const data = new this.Floats(n), state = new Uint8Array(n);
      for (let i = 0; i < n; i++) {
        const held = rule.data[rule.data.length > 1 ? i : 0];
        const chosen = cases[held === 1 ? 0 : 1];
        const place = chosen.data.length > 1 ? i : 0;
        data[i] = chosen.data[place];
        state[i] = held === WRONG ? WRONG : chosen.state ? chosen.state[place] : 0;
      }
      return { data, state };
    }

    // Populations: of whole updates only. The members are tokens or responses, in the store's order.

    // {values, members}: the numbers of tokens or responses, and 1 for those that count.
    population(of, within, level) {
      const n = this.sizes[level];
      const values = this.spreadOut(this.at(of, level), n);
      const members = this.store.whole(level).slice();
      const chosen = within && this.chosen(within, level);
      if (chosen) for (let i = 0; i < n; i++) if (chosen[i] !== 1) members[i] = 0;
      const unknown = of.isRule ? values.data : values.state;
      const limit = of.isRule ? UNDEFINED : 1;
      if (unknown) for (let i = 0; i < n; i++) if (unknown[i] >= limit) members[i] = 0;
      return { values, members };
    }

    // The tokens or responses in `within`, a response by one of its tokens, too.
    chosen(within, level) {
      const finer = Math.max(level, within.level);
      const held = this.spreadOut(this.at(within, finer), this.sizes[finer]).data;
      return finer > level ? this.store.anyByResponse(held) : held;
    }

    spreadOut({ data, state }, n) {
      const full = (x) => (x && x.length === 1 && n !== 1 ? new x.constructor(n).fill(x[0]) : x);
      return { data: full(data), state: full(state) };
    }

    // The numbers of the members, unit after unit: {sorted, ends}.
    byUnit({ values, members }, by, level) {
      const { unit, count } = this.store.units(by, level);
      const ends = new Int32Array(count + 1);
      for (let i = 0; i < members.length; i++) if (members[i]) ends[unit[i] + 1]++;
      for (let k = 0; k < count; k++) ends[k + 1] += ends[k];
      const next = ends.slice(), numbers = new values.data.constructor(ends[count]);
      for (let i = 0; i < members.length; i++) if (members[i]) numbers[next[unit[i]]++] = values.data[i];
      return { numbers, ends, unit, count };
    }

    // The numbers of the members of each unit in their order; kept for plain columns.
    ranked(node) {
      const [value, within] = node.parts;
      const key = within || value.kind !== "column" ? "" : `${value.name} ${node.by} ${node.counted} ${this.wide}`;
      const kept = this.store.ranks.get(key);
      if (kept) return kept;
      const found = this.population(value, within, node.counted);
      const ranked = { ...found, ...this.byUnit(found, node.by, node.counted) };
      const { numbers, ends, count } = ranked;
      for (let k = 0; k < count; k++) numbers.subarray(ends[k], ends[k + 1]).sort();
      if (key) this.store.ranks.set(key, ranked);
      return ranked;
    }

    cut(node) {
      const { numbers, ends, count } = this.ranked(node);
      const top = node.name === "top";
      const limits = new this.Floats(count);
      for (let k = 0; k < count; k++) {
        const n = ends[k + 1] - ends[k];
        let size = Math.min(Math.max(share(node.fraction, n, node.round), node.at_least), n);
        if (size < node.none_below) size = 0;
        limits[k] = size ? numbers[ends[k] + (top ? n - size : size - 1)] : NaN;
      }
      return this.upTo(node, limits, top);
    }

    // The smallest numbers of each unit with a mean of at most the limit; equal ones together.
    mean_cut(node) {
      const { numbers, ends, count } = this.ranked(node);
      const limits = new this.Floats(count).fill(NaN);
      for (let k = 0; k < count; k++) {
        const from = ends[k];
        let low = from, high = ends[k + 1]; // low numbers are not too many
        while (low < high) {
          const middle = (low + high + 1) >> 1;
          if (exactSum(numbers, from, middle) <= node.limit * (middle - from)) low = middle;
          else high = middle - 1;
        }
        while (low > from && low < ends[k + 1] && numbers[low] === numbers[low - 1]) low--;
        if (low > from) limits[k] = numbers[low - 1];
      }
      return this.upTo(node, limits, false);
    }

    // The members from each unit's limit on (top) or up to it.
    upTo(node, limits, top) {
      const { values, members, unit } = this.ranked(node);
      const x = values.data, n = members.length, data = new Uint8Array(n);
      for (let i = 0; i < n; i++) {
        const limit = limits[unit[i]];
        if (members[i]) data[i] = top ? x[i] >= limit : x[i] <= limit;
      }
      const within = node.within && this.chosen(node.within, node.counted);
      const whole = this.store.whole(node.counted);
      for (let i = 0; i < n; i++) {
        if (!whole[i] || (values.state?.[i] && (!within || within[i] === 1))) data[i] = UNDEFINED;
      }
      return { data, state: null };
    }

    quantile(node) {
      const { numbers, ends, count } = this.ranked(node);
      const found = new this.Floats(count), state = new Uint8Array(count);
      for (let k = 0; k < count; k++) {
        const n = ends[k + 1] - ends[k];
        const place = Math.max(share(node.fraction, n, "ceil"), 1);
        if (n) found[k] = numbers[ends[k] + place - 1];
        else state[k] = UNDEFINED;
      }
      return this.perMember(node, found, state);
    }

    // (rank − 1)/(n − 1) of each member in its unit; equal numbers have the mean of their ranks.
    rank(node) {
      const [of, within] = node.parts;
      const found = this.population(of, within, node.level);
      const { numbers, ends, unit, count } = this.byUnit(found, node.by, node.level);
      for (let k = 0; k < count; k++) numbers.subarray(ends[k], ends[k + 1]).sort();
      const first = (from, to, reached) => { // the first place of a sorted unit that has reached a number
        while (from < to) {
          const middle = (from + to) >> 1;
          if (reached(numbers[middle])) to = middle;
          else from = middle + 1;
        }
        return from;
      };
      const size = unit.length, data = new this.Floats(size), state = new Uint8Array(size);
      for (let i = 0; i < size; i++) {
        const x = found.values.data[i], [from, to] = [ends[unit[i]], ends[unit[i] + 1]];
        if (!found.members[i]) state[i] = UNDEFINED;
        else if (to - from === 1) data[i] = 0.5;
        else {
          const below = first(from, to, (y) => y >= x) - from, upTo = first(from, to, (y) => y > x) - from;
          data[i] = (below + upTo - 1) / (2 * (to - from - 1));
        }
      }
      return { data, state };
    }

    aggregate(node) {
      const [of, within] = node.parts;
      const level = node.counted;
      const members = this.population(of, within, level);
      const { numbers, ends, count } = this.byUnit(members, node.by, level);
      const Kind = node.isRule ? Uint8Array : this.Floats;
      const found = new Kind(count), state = new Uint8Array(count);
      for (let k = 0; k < count; k++) {
        const [from, to] = [ends[k], ends[k + 1]];
        found[k] = this.statistic(node.name, numbers, from, to);
        if (from === to && ["mean", "min", "max", "share"].includes(node.name)) state[k] = UNDEFINED;
      }
      return this.perMember(node, found, state);
    }

    statistic(name, numbers, from, to) {
      if (name === "sum") return exactSum(numbers, from, to);
      if (name === "mean") return exactSum(numbers, from, to) / (to - from);
      let found = name === "min" ? Infinity : name === "max" ? -Infinity : 0;
      for (let i = from; i < to; i++) {
        if (name === "min") found = Math.min(found, numbers[i]);
        else if (name === "max") found = Math.max(found, numbers[i]);
        else found += numbers[i]; // a rule
      }
      if (name === "any") return found > 0;
      if (name === "all") return found === to - from;
      return name === "share" ? found / (to - from) : found;
    }

    // The values of units for each update, response or token of a whole update.
    perMember(node, found, state) {
      const { unit } = this.store.units(node.by, node.level);
      const whole = this.store.whole(node.level);
      const data = new found.constructor(unit.length), states = new Uint8Array(unit.length);
      for (let i = 0; i < unit.length; i++) {
        data[i] = found[unit[i]];
        states[i] = whole[i] ? state[unit[i]] : UNDEFINED;
      }
      if (!node.isRule) return this.finite({ data, state: states });
      for (let i = 0; i < unit.length; i++) if (states[i]) data[i] = states[i];
      return { data, state: null };
    }

    // Partial sums of 1, 2, 4, ... tokens are added, in the order in which Python adds them.
    scan(node) {
      const size = this.store.size;
      const values = this.spreadOut(this.at(node.parts[0], TOKEN), size);
      const data = new this.Floats(size), state = new Uint8Array(size);
      for (const { start, end, whole } of this.store.responses) {
        const n = end - start, at = (i) => (node.side === "prefix" ? start + i : end - 1 - i);
        const total = Float64Array.from({ length: n }, (_, i) => (values.state?.[at(i)] ? 0 : values.data[at(i)]));
        for (let step = 1; step < n; step *= 2)
          for (let i = n - 1; i >= step; i--) total[i] += node.decay ** step * total[i - step];
        let unknown = whole ? 0 : UNDEFINED;
        for (let i = 0; i < n; i++) {
          if (values.state?.[at(i)]) unknown = UNDEFINED;
          data[at(i)] = total[i];
          state[at(i)] = unknown;
        }
      }
      return this.finite({ data, state });
    }
  }

  rules.select = (node, store) => {
    if (!node.isRule) {
      const text = rules.text(node);
      throw new RuleError(`'${text}' is a number. Expected a rule, such as ${text} > 0`);
    }
    const wide = rules.names(node).some((name) => name === "response" || name === "group");
    const evaluation = new Evaluation(store, wide);
    const { data } = evaluation.spreadOut(evaluation.at(node, TOKEN), store.size);
    return data.map((held) => (held === 1 ? 1 : 0));
  };
})();
