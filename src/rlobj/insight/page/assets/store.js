"use strict";
// The rows of a page. Each column waits in an element of its own, as base64 of deflate of numbers,
// and is decoded when it is first asked for.
//
//   const store = openStore();
//   store.size, store.meta           rows, and how they are stored
//   await store.load(names);         then the next three, `updates` and `responses` can be read
//   store.column(name)               Float32Array, NaN = null; true is 1. Ids and counts: Int32Array.
//                                    A text: places in store.values(name). holds:PART, whether a part
//                                    of the run's rules holds: 1, 0, or 2 = not known
//   store.values(name)               the different texts of a column, maybe with null among them
//   store.text(row)                  the token's text ("text" must be loaded)
//   store.has(name), store.names     columns of the page
//   store.updates                    [{step, update, start, end, whole}], rows start to end - 1
//   store.responses                  [{step, update, group, rollout, response, start, end, whole}]; whole ones
//                                    may have no rows

function openStore() {
  const meta = JSON.parse(document.getElementById("store-meta").textContent);
  const KEYS = ["start", "step", "update", "group", "rollout", "response"];
  const ARRAYS = {
    float32: Float32Array, float64: Float64Array, int32: Int32Array, bool: Uint8Array, text: Int32Array,
  };
  const own = new Map(); // as the page has them, per token or per response
  const loading = new Map(), lists = new Map(), wide = new Map(), kept = new Map();
  const { size } = meta;
  const updates = [], responses = [];

  const once = (map, key, make) => map.get(key) ?? (map.set(key, make()), map.get(key));

  async function decode(name) {
    const { type, element, values } = meta.columns[name];
    const { buffer } = await once(kept, element, () => unpack(element));
    let data = new ARRAYS[type](buffer);
    if (type === "bool" && !name.startsWith("holds:")) data = new Float32Array(data).map((x) => (x === 2 ? NaN : x));
    if (values) {
      const bytes = await once(kept, values, () => unpack(values));
      lists.set(name, JSON.parse(new TextDecoder().decode(bytes)));
    }
    own.set(name, data);
  }

  async function load(names) {
    await Promise.all([...KEYS, ...names].map((name) => once(loading, name, () => decode(name))));
    if (!responses.length) arrange();
  }

  // The updates and responses, from the columns of the responses.
  function arrange() {
    const [starts, steps, numbers, groups, rollouts, ids] = KEYS.map((name) => own.get(name));
    const whole = new Set(meta.updates.map(({ step, update }) => `${step} ${update}`));
    for (let i = 0; i < starts.length; i++) {
      const [step, update, start] = [steps[i], numbers[i], starts[i]];
      const end = starts[i + 1] ?? size;
      let last = updates.at(-1);
      if (last?.step !== step || last.update !== update) {
        last = { step, update, start, end, whole: whole.has(`${step} ${update}`) };
        updates.push(last);
      }
      last.end = end;
      const [group, rollout, response] = [groups[i], rollouts[i], ids[i]];
      responses.push({ step, update, group, rollout, response, start, end, whole: last.whole });
    }
  }

  // One number per response as one per token.
  function spread(values) {
    const rows = new values.constructor(size);
    responses.forEach(({ start, end }, i) => rows.fill(values[i], start, end));
    return rows;
  }

  function column(name) {
    if (meta.columns[name]?.per !== "response") return own.get(name);
    return once(wide, name, () => spread(own.get(name)));
  }

  const names = new Set(Object.keys(meta.columns));
  names.delete("start");
  return {
    size, meta, load, column, updates, responses,
    names: [...names],
    has: (name) => names.has(name),
    values: (name) => lists.get(name),
    text: (row) => lists.get("text")[own.get("text")[row]],
  };
}
