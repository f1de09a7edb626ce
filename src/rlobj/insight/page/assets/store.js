// The rows of a page. Each column waits in an element of its own, as base64 of deflate of numbers,
// and is decoded when it is first asked for.
//
//   const store = openStore();
//   store.size, store.meta           rows, and how they are stored
//   await store.load(names);         then the next three, `updates` and `responses` can be read
//   store.column(name)               Float32Array, NaN = null; true is 1. Ids and counts: Int32Array.
//                                    A text: places in store.values(name)
//   store.values(name)               the different texts of a column, maybe with null among them
//   store.text(row)                  the token's text ("text" must be loaded)
//   store.has(name), store.names     columns of the page, with those that are computed
//   store.updates                    [{step, update, start, end, whole, state}], rows start to end - 1
//   store.responses                  [{step, update, group, response, start, end, whole}]; whole ones
//                                    may have no rows
//   store.answers(rule)              1 for each update that can answer a rule, else 0
//   store.preload()                  loads all columns whenever the browser is idle

function openStore() {
  const meta = JSON.parse(document.getElementById("store-meta").textContent);
  const KEYS = ["start", "step", "update", "group", "response"];
  const ARRAYS = {
    float32: Float32Array, float64: Float64Array, int32: Int32Array, bool: Uint8Array, text: Int32Array,
  };
  const POPULATIONS = ["aggregate", "cut", "quantile", "rank", "scan"];
  const OPPOSITE = { surprisal: "logprob", old_surprisal: "old_logprob" };
  const own = new Map(); // as the page has them, per token or per response
  const loading = new Map(), lists = new Map(), wide = new Map(), kept = new Map();
  const { size } = meta;
  let updates, responses, updateOf;

  const once = (map, key, make) => map.get(key) ?? (map.set(key, make()), map.get(key));

  async function decode(name) {
    const { type, element, values } = meta.columns[name];
    const { buffer } = await once(kept, element, () => unpack(element));
    let data = new ARRAYS[type](buffer);
    if (type === "bool") data = new Float32Array(data).map((x) => (x === 2 ? NaN : x));
    if (values) {
      const bytes = await once(kept, values, () => unpack(values));
      lists.set(name, JSON.parse(new TextDecoder().decode(bytes)));
    }
    own.set(name, data);
  }

  async function load(names) {
    const wanted = names.flatMap((name) => rules.DERIVED[name] ?? name);
    for (const name of wanted) if (!meta.columns[name]) throw new Error(`the page has no column '${name}'`);
    await Promise.all([...KEYS, ...wanted].map((name) => once(loading, name, () => decode(name))));
    if (!updates) arrange();
  }

  // The updates and responses, from the columns of the responses.
  function arrange() {
    const [starts, steps, numbers, groups, ids] = KEYS.map((name) => own.get(name));
    const whole = new Map(meta.updates.map((each) => [`${each.step} ${each.update}`, each]));
    [updates, responses, updateOf] = [[], [], new Int32Array(starts.length)];
    for (let i = 0; i < starts.length; i++) {
      const [step, update] = [steps[i], numbers[i]];
      const start = starts[i], end = i + 1 < starts.length ? starts[i + 1] : size;
      let last = updates[updates.length - 1];
      if (!last || last.step !== step || last.update !== update) {
        const known = whole.get(`${step} ${update}`);
        last = { step, update, start, end, whole: known !== undefined, state: known?.state };
        updates.push(last);
      }
      last.end = end;
      updateOf[i] = updates.length - 1;
      responses.push({ step, update, group: groups[i], response: ids[i], start, end, whole: last.whole });
    }
  }

  const mine = (name) => {
    const data = own.get(name);
    if (!data) throw new Error(`column '${name}' is not loaded; await store.load(['${name}'])`);
    return data;
  };

  // An array per update (0) or response (1) as one per response or token (2).
  function spread(values, from, to) {
    let found = values;
    if (from === to) return found;
    if (from === 0) {
      found = new values.constructor(responses.length);
      for (let i = 0; i < found.length; i++) found[i] = values[updateOf[i]];
    }
    if (to === 1) return found;
    const rows = new values.constructor(size);
    for (let i = 0; i < found.length; i++) rows.fill(found[i], responses[i].start, responses[i].end);
    return rows;
  }

  function column(name) {
    if (name in OPPOSITE) return once(wide, name, () => mine(OPPOSITE[name]).map((x) => -x));
    if (meta.columns[name]?.per !== "response") return mine(name);
    return once(wide, name, () => spread(mine(name), 1, 2));
  }

  // 1 for each update, response or token (level 0, 1, 2) of a whole update.
  const whole = (level) =>
    once(kept, `whole ${level}`, () => spread(Uint8Array.from(updates, (each) => each.whole), 0, level));

  // For each update: 0 if a number is known in none of its rows, 1 in some, 2 in all.
  const knows = (name) =>
    once(kept, `knows ${name}`, () => {
      const values = column(name);
      return Uint8Array.from(updates, ({ start, end }) => {
        let count = 0;
        for (let row = start; row < end; row++) count += values[row] === values[row];
        return count === end - start ? 2 : +(count > 0);
      });
    });

  // 1 for each update that can answer a rule. Where a rule compares tokens, the update must have all of
  // them, with the numbers that the rule reads; some columns are known in whole updates only.
  function answers(rule) {
    const nodes = rules.walk(rule);
    const compares = nodes.some(({ kind, name }) => POPULATIONS.includes(kind) || name === "covariance");
    const names = rules.names(rule).filter((name) => name !== "spurious"); // null = not judged
    const lacks = (name) => updates.every(({ whole }, i) => whole || !knows(name)[i]);
    const limited = compares || nodes.some(({ kind }) => kind === "controlled") || names.some(lacks);
    const complete = (i) => !compares || names.every((name) => knows(name)[i] === 2);
    return Uint8Array.from(updates, (each, i) => !limited || (each.whole && complete(i)));
  }

  // The unit of each update, response or token: {unit, count}.
  function units(by, level) {
    return once(kept, `${by} ${level}`, () => {
      if (by === "update" && !level) return { unit: Int32Array.from(updates.keys()), count: updates.length };
      if (by === "update") return { unit: spread(Int32Array.from(updates.keys()), 0, level), count: updates.length };
      const member = new Int32Array(responses.length), longest = [];
      let count = 0;
      responses.forEach((each, i) => {
        const before = responses[i - 1];
        const same = before && updateOf[i] === updateOf[i - 1] && before.group === each.group;
        if (!same || by === "response") longest[count++] = 0;
        member[i] = count - 1;
        longest[count - 1] = Math.max(longest[count - 1], each.whole ? each.end - each.start : 0);
      });
      if (by !== "position") return { unit: spread(member, 1, level), count };
      const unit = new Int32Array(size), offsets = [0];
      for (const tokens of longest) offsets.push(offsets[offsets.length - 1] + tokens);
      responses.forEach(({ start, end, whole }, i) => {
        for (let row = start; whole && row < end; row++) unit[row] = offsets[member[i]] + row - start;
      });
      return { unit, count: Math.max(offsets[count], 1) };
    });
  }

  function anyByResponse(held) {
    const found = new Uint8Array(responses.length);
    responses.forEach(({ start, end }, i) => {
      for (let row = start; row < end && !found[i]; row++) if (held[row] === 1) found[i] = 1;
    });
    return found;
  }

  const names = new Set(Object.keys(meta.columns));
  names.delete("start");
  for (const [name, reads] of Object.entries(rules.DERIVED))
    if (reads.every((each) => names.has(each))) names.add(name);
  const numbers = [...names].filter((name) => meta.columns[name]?.type !== "text");
  rules.known.columns = new Set(numbers);
  rules.known.controllers = new Set(meta.updates.flatMap(({ state }) => Object.keys(state)));
  for (const name of names) {
    const field = ["text", "effect"].includes(name) ? `; choose it in the field '${name}' beside` : "";
    if (meta.columns[name]?.type === "text")
      rules.known.notes[name] = `'${name}' is a text, and a rule compares numbers${field}`;
  }

  const idle = window.requestIdleCallback ?? ((act) => setTimeout(act, 50));
  return {
    size, meta, load, column, spread, whole, units, anyByResponse, answers,
    names: [...names],
    ranks: new Map(),
    has: (name) => names.has(name),
    perResponse: mine,
    values: (name) => lists.get(name),
    text: (row) => lists.get("text")[own.get("text")[row]],
    preload() {
      const waiting = Object.keys(meta.columns).filter((name) => !loading.has(name));
      const next = () => waiting.length && load([waiting.shift()]).then(() => idle(next));
      idle(next);
    },
    get updates() {
      return updates;
    },
    get responses() {
      return responses;
    },
  };
}
