// The rule language: `rules.parse(text)` reads what rlobj.parse reads, and refuses what it refuses.
//
//   rules.parse(text)          a node; throws RuleError with `message` and `at`, the character
//   rules.names(node)          the columns of the store that the node reads
//   rules.select(node, store)  Uint8Array, 1 = selected (evaluate.js)
//   rules.text(node)           the part of the text that it was read from
//
// A node has kind, isRule, level (0 update, 1 response, 2 token), parts (nodes), from, to and source.
// `rules.known` holds the names of columns and controllers; openStore() sets it.

class RuleError extends Error {
  constructor(message, at = 0) {
    super(message);
    this.at = at;
  }
}

const rules = (() => {
  const FUNCTIONS = { clip: ["number", "low", "high"], when: ["rule", "number", "number"] };
  for (const name of ["abs", "exp", "log", "sqrt", "sign"]) FUNCTIONS[name] = ["number"];
  for (const name of ["minimum", "maximum"]) FUNCTIONS[name] = ["number", "number"];
  const CUT = ["fraction", "within", "round", "at_least", "none_below", "by", "of"];
  const METHODS = {
    top: CUT, bottom: CUT, quantile: ["q", "within", "by", "of"], rank: ["within", "by"],
    bottom_to_mean: ["limit", "within", "by"],
    prefix_sum: ["decay"], suffix_sum: ["decay"], sample: ["size", "seed", "of", "round", "at_least"],
  };
  for (const name of ["mean", "sum", "min", "max", "any", "all", "count", "share"])
    METHODS[name] = ["by", "within"];
  const OF_RULES = ["sample", "any", "all", "count", "share"];
  const DERIVED = {
    surprisal: ["logprob"], old_surprisal: ["old_logprob"], covariance: ["advantage", "logprob"],
  };
  const BY_RESPONSE = ["reward", "length"];
  const DEEPEST = 100; // as MAX_DEPTH of Python's parser
  const KEYWORDS = new Set(
    "and or not in is if else lambda for async await yield None True False from import".split(" "));
  const SPACE = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/; // as Python's
  const NUMBER = new RegExp(
    "0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+" +
      "|(?:[0-9](?:_?[0-9])*\\.(?:[0-9](?:_?[0-9])*)?|\\.[0-9](?:_?[0-9])*|[0-9](?:_?[0-9])*)" +
      "(?:[eE][+-]?[0-9](?:_?[0-9])*)?", "y");
  const NAME = /[\p{XID_Start}_][\p{XID_Continue}]*/uy;
  const STRING = /[uUrR]?("[^"\\]*"|'[^'\\]*')/y; // without escapes
  const OPERATOR = /\*\*|\/\/|<<|>>|<=|>=|==|!=|[-+*\/%@<>&|^~().,=]/y;
  const BINARY = [["|"], ["^"], ["&"], ["<<", ">>"], ["+", "-"], ["*", "/", "//", "%", "@"]];
  const NESTED = "is nested more than 100 levels deep";
  const ADVICE = "Put each comparison in parentheses: (advantage > 0) & (prob < 0.002)";

  // The known name with the most pairs of letters in common, if these are most of its letters.
  function nearest(name, names) {
    const pairs = (word) => new Set(Array.from(word, (letter, i) => letter + (word[i + 1] ?? "")));
    const own = pairs(name.slice(0, 50));
    if (name === "probability") return " Did you mean 'prob'?";
    const score = (other) => [...pairs(other)].filter((pair) => own.has(pair)).length / Math.max(own.size, other.length);
    const best = [...names].reduce((x, y) => (score(y) > score(x) ? y : x), "");
    return best && score(best) > 0.4 ? ` Did you mean '${best}'?` : "";
  }

  // Tokens: {kind: "number" | "name" | "keyword" | "string" | "operator" | "end", value, from, to}.
  function tokens(text) {
    const found = [];
    const match = (pattern, at) => ((pattern.lastIndex = at), pattern.exec(text));
    const refuse = (why, at) => {
      throw new RuleError(`cannot be read: ${why}`, at);
    };
    for (let at = 0, part; at < text.length; ) {
      if (SPACE.test(text[at])) at++;
      else {
        const token = { from: at };
        if ((part = match(STRING, at))) [token.kind, token.value] = ["string", part[1].slice(1, -1)];
        else if ((part = match(NUMBER, at))) {
          const digits = part[0].replaceAll("_", "");
          if (/^0+[1-9]\d*$/.test(digits)) refuse("leading zeros in an integer", at);
          [token.kind, token.value] = ["number", Number(digits)];
          token.whole = /^(0[xob].*|\d+)$/i.test(digits);
        } else if ((part = match(NAME, at)))
          [token.kind, token.value] = [KEYWORDS.has(part[0]) ? "keyword" : "name", part[0].normalize("NFKC")];
        else if ((part = match(OPERATOR, at))) [token.kind, token.value] = ["operator", part[0]];
        else refuse(`invalid character '${text[at]}'`, at);
        token.to = at += part[0].length;
        const next = match(NAME, at);
        if (token.kind === "number" && next && !KEYWORDS.has(next[0])) refuse("invalid number", token.from);
        if (token.kind === "name" && /["']/.test(text[at])) refuse("this kind of text", token.from);
        found.push(token);
      }
    }
    found.push({ kind: "end", value: "", from: text.length, to: text.length });
    return found;
  }

  /* Whether a node has one value per turn; a page stores it for each token. */
  function ofTurns({ kind, name, level, parts }) {
    if (kind === "column") return ["turn", "turn_reward"].includes(name);
    const fine = parts.filter((part) => part.level === 2);
    const population = ["aggregate", "cut", "mean_cut", "quantile", "rank", "scan"].includes(kind);
    return level === 2 && !population && fine.length > 0 && fine.every(ofTurns);
  }

  class Parser {
    constructor(text, known) {
      if (!text.isWellFormed()) throw new RuleError("cannot be read: half of a character");
      if (text.includes("#")) throw new RuleError("a rule cannot hold a comment", text.indexOf("#"));
      [this.text, this.tokens, this.place, this.open, this.known] = [text, tokens(text), 0, 0, known];
    }

    get next() {
      return this.tokens[this.place];
    }

    is(...values) {
      const { kind, value } = this.next;
      return (kind === "operator" || kind === "keyword") && values.includes(value);
    }

    take() {
      return this.tokens[this.place++];
    }

    expect(value) {
      if (!this.is(value)) this.fail("cannot be read: invalid syntax");
      return this.take();
    }

    fail(message, at = this.next.from) {
      throw new RuleError(message, at.from ?? at);
    }

    node(kind, from, fields) {
      const parts = fields.parts ?? [];
      const depth = 1 + Math.max(0, ...parts.map((part) => part.depth));
      if (depth > DEEPEST) this.fail(NESTED, 0);
      const level = Math.max(0, ...parts.map((part) => part.level));
      const to = this.tokens[this.place - 1].to;
      return { kind, isRule: false, level, parts, depth, from, to, source: this.text, ...fields };
    }

    // The text is read from the operators that bind least to those that bind most.

    whole() {
      const node = this.or();
      if (this.next.kind !== "end") this.fail("cannot be read: invalid syntax");
      return node;
    }

    nested(read) {
      if (++this.open > 2 * DEEPEST) this.fail("cannot be read: nested too deeply", 0);
      const node = read();
      this.open--;
      return node;
    }

    chain(read, operators) {
      let left = read();
      while (this.is(...operators)) {
        const operator = this.take();
        left = this.join(operator, left, read());
      }
      return left;
    }

    or() {
      return this.chain(() => this.chain(() => this.not(), ["and"]), ["or"]);
    }

    not() {
      if (!this.is("not")) return this.comparison();
      const { from } = this.take();
      return this.inverted(from, this.nested(() => this.not()));
    }

    comparison() {
      const left = this.binary(0);
      if (this.is("==", "!=", "in", "is", "not"))
        this.fail("use <, <=, > or >= (equality of floats is never exact)");
      if (!this.is("<", "<=", ">", ">=")) return left;
      const operator = this.take().value;
      const parts = [left, this.binary(0)];
      if (this.is("<", "<=", ">", ">=", "==", "!=", "in", "is", "not"))
        this.fail("comparisons do not chain; write (0 < prob) & (prob < 1), each comparison in parentheses");
      const rule = parts.find((part) => part.isRule);
      if (rule) this.fail(`'${rules.text(rule)}' is a rule and cannot be compared`, rule);
      return this.node("compare", left.from, { operator, parts, isRule: true });
    }

    binary(strength) {
      if (strength === BINARY.length) return this.unary();
      return this.chain(() => this.binary(strength + 1), BINARY[strength]);
    }

    join({ value, from }, left, right) {
      const parts = [left, right];
      const operator = { and: "&", or: "|" }[value] ?? value;
      const isRule = operator === "&" || operator === "|";
      if (!isRule && !["+", "-", "*", "/", "**"].includes(operator))
        this.fail(`operator ${operator} is not allowed; use + - * / ** & |`, from);
      const wrong = parts.find((part) => part.isRule !== isRule);
      if (wrong) {
        const text = rules.text(wrong);
        this.fail(isRule ? `'${operator}' joins rules, got the number '${text}'. ${ADVICE}`
          : `'${text}' is a rule, not a number; use when(${text}, 1, 0) to do arithmetic with it`, wrong);
      }
      return this.node(isRule ? "logic" : "arithmetic", left.from, { operator, parts, isRule });
    }

    inverted(from, operand) {
      if (!operand.isRule)
        this.fail(`${this.text[from] === "~" ? "~" : "'not'"} takes a rule, got the number '${rules.text(operand)}'; compare it first`, from);
      return this.node("not", from, { parts: [operand], isRule: true });
    }

    unary() {
      if (!this.is("-", "~", "+")) return this.power();
      const { value, from } = this.take();
      const operand = this.nested(() => this.unary());
      if (value === "~") return this.inverted(from, operand);
      if (value === "+" || operand.isRule)
        this.fail(`'${value}' cannot stand before '${rules.text(operand)}'`, from);
      const bare = operand.kind === "constant" && !operand.closed && operand.value >= 0;
      if (bare && !operand.signed)
        return this.node("constant", from, { value: -operand.value, whole: operand.whole, signed: true });
      return this.node("negative", from, { parts: [operand] });
    }

    power() {
      const left = this.primary();
      if (!this.is("**")) return left;
      return this.join(this.take(), left, this.nested(() => this.unary()));
    }

    primary() {
      let node = this.atom();
      while (this.is(".", "(")) {
        if (this.is("(")) this.fail("this is not a function", node);
        this.take();
        const name = this.take();
        if (name.kind !== "name") this.fail("cannot be read: invalid syntax", name);
        if (!Object.hasOwn(METHODS, name.value))
          this.fail(`unknown method '.${name.value}'.${nearest(name.value, Object.keys(METHODS))}`, name);
        if (!this.is("(")) this.fail(`'.${name.value}' needs arguments, such as entropy.bottom(0.8)`, name);
        node = this.method(node, name);
      }
      return node;
    }

    atom() {
      const token = this.take();
      const { kind, value, from } = token;
      if (kind === "number") {
        if (!Number.isFinite(value)) this.fail(`a number in a rule must be finite, got ${value}`, from);
        return this.node("constant", from, { value, whole: token.whole });
      }
      if (kind === "operator" && value === "(") {
        const inner = this.nested(() => this.or());
        this.expect(")");
        return { ...inner, from, to: this.tokens[this.place - 1].to, closed: true };
      }
      if (kind === "string" || ["None", "True", "False"].includes(value))
        this.fail(`expected a number, got ${this.text.slice(from, token.to)}`, from);
      if (kind !== "name") this.fail("cannot be read: invalid syntax", from);
      return this.is("(") ? this.called(token) : this.named(token);
    }

    named({ value, from }) {
      if (this.known.columns.has(value))
        return this.node("column", from, { name: value, level: BY_RESPONSE.includes(value) ? 1 : 2 });
      if (Object.hasOwn(FUNCTIONS, value) || Object.hasOwn(METHODS, value))
        this.fail(`'${value}' must be called with arguments in parentheses`, from);
      if (this.known.controllers.has(value)) return this.node("controlled", from, { name: value });
      const note = this.known.notes[value];
      const others = [...this.known.columns].sort().join(", ");
      const advice = nearest(value, this.known.columns) || ` It has ${others}`;
      this.fail(note ?? `the page has no column '${value}'.${advice}`, from);
    }

    called({ value: name, from }) {
      if (name === "custom") this.fail("custom(...) is Python code, which a page cannot run", from);
      if (name === "reward") {
        const { name: given } = this.arguments(["name"]);
        if (typeof given?.value !== "string" || given.keyword) this.fail('write reward("format")', from);
        const column = `reward:${given.value}`;
        if (!this.known.columns.has(column)) this.fail(`the page has no reward '${given.value}'`, from);
        return this.node("column", from, { name: column, level: 1 });
      }
      if (!Object.hasOwn(FUNCTIONS, name))
        this.fail(`'${name}' is not a function.${nearest(name, [...Object.keys(FUNCTIONS), "reward"])}`, from);
      const expected = FUNCTIONS[name];
      this.take();
      const parts = [];
      for (; !this.is(")"); this.is(")") || this.expect(",")) parts.push(this.nested(() => this.or()));
      this.take();
      if (parts.length !== expected.length)
        this.fail(`write ${name}(${expected.join(", ")}), got ${parts.length} arguments`, from);
      parts.forEach((part, i) => {
        if (part.isRule !== (expected[i] === "rule"))
          this.fail(`${name} takes ${expected[i] === "rule" ? "a rule" : "a number"}, got ` +
            `${part.isRule ? "the rule" : "the number"} '${rules.text(part)}'`, part);
      });
      return this.node(name === "when" ? "when" : "function", from, { name, parts });
    }

    // {name: {value, whole, node, keyword}} of a call's arguments.
    arguments(names) {
      const given = {};
      let count = 0, keywords = false;
      this.expect("(");
      while (!this.is(")")) {
        const { from, value, kind } = this.next;
        const after = this.tokens[this.place + 1];
        const keyword = kind === "name" && after.kind === "operator" && after.value === "=";
        if (keyword) this.place += 2;
        else if (keywords) this.fail("cannot be read: positional argument follows keyword argument");
        keywords ||= keyword;
        const name = keyword ? value : names[count++];
        if (!keyword && count > names.length)
          this.fail(`too many arguments; expected ${names.join(", ")}`, from);
        if (!names.includes(name)) this.fail(`unknown argument '${name}'.${nearest(name, names)}`, from);
        if (Object.hasOwn(given, name)) this.fail(`argument '${name}' is given twice`, from);
        given[name] = { ...this.argument(name), keyword };
        if (!this.is(")")) this.expect(",");
      }
      this.take();
      return given;
    }

    argument(name) {
      const { from, kind, value } = this.next;
      if (name === "within" && !(kind === "keyword" && value === "None")) {
        const node = this.nested(() => this.or());
        if (!node.isRule)
          this.fail(`within takes a rule such as prob < 0.002, got '${rules.text(node)}'. ${ADVICE}`, node);
        return { node };
      }
      const negative = this.is("-") && this.take();
      let open = 0;
      while (this.is("(")) this.take(), open++;
      const token = this.take();
      let found = token.value;
      while (token.kind === "string" && this.next.kind === "string") found += this.take().value;
      if (found === "None" && token.kind === "keyword") found = null; // others are refused below
      while (open && this.is(")")) this.take(), open--;
      const plain = ["number", "string"].includes(token.kind) || found === null;
      if (!plain || open || !this.is(",", ")") || (negative && token.kind !== "number"))
        this.fail(`'${name}' must be written as a plain value, such as 0.2 or 'group'`, from);
      return { value: negative ? -found : found, whole: token.whole };
    }

    method(owner, { value: name, from }) {
      if (owner.isRule !== OF_RULES.includes(name)) {
        const kind = owner.isRule ? "numbers" : "rules";
        this.fail(`'.${name}' is for ${kind}, got '${rules.text(owner)}'`, owner);
      }
      if (name === "sample")
        this.fail("'.sample' is random, and a page does not draw the run's numbers; use `rlobj replay`", from);
      if (ofTurns(owner))
        this.fail(`'.${name}' counts each turn once here, which a page cannot do; use \`rlobj replay\``, from);
      const given = this.arguments(METHODS[name]);
      const value = (key, otherwise) => (key in given ? given[key].value : otherwise);
      const check = (right, message) => right || this.fail(message, from);
      const within = given.within?.node;
      const parts = within ? [owner, within] : [owner];
      const by = value("by", "update");
      const levels = { update: 0, group: 1, position: 2, response: 1 };
      const size = (key) => {
        check(!(key in given) || (given[key].whole && value(key) >= 0),
          `${name}(${key}=...) must be a whole number of tokens >= 0`);
        return value(key, 0);
      };
      if (name.endsWith("_sum")) {
        const decay = value("decay", 1);
        check(typeof decay === "number" && decay > 0 && decay <= 1, `${name}(): the decay must lie in (0, 1]`);
        return this.node("scan", owner.from, { side: name.slice(0, 6), decay, parts, level: 2 });
      }
      const ranks = ["top", "bottom", "quantile", "bottom_to_mean"].includes(name);
      check(typeof by === "string" && Object.hasOwn(levels, by) && !(ranks && by === "position"),
        `${name}(by='${by}'): expected one of update, group, ${ranks ? "" : "position, "}response; by turn: \`rlobj replay\``);
      if (!ranks) {
        check(owner.level > 0, `${name}() needs a column, and '${rules.text(owner)}' is the same for the whole update`);
        const counted = by === "position" || owner.level === 2 ? 2 : 1;
        if (name === "rank") return this.node("rank", owner.from, { by, within, parts, level: counted });
        const isRule = name === "any" || name === "all";
        return this.node("aggregate", owner.from, { name, by, within, counted, parts, isRule, level: levels[by] });
      }
      const key = METHODS[name][0];
      check(key in given, `'.${name}' needs ${key}: ${name}(0.2)`);
      check(rules.walk(owner).some((node) => node.kind === "column"),
        `${name}() needs a column to rank by, got '${rules.text(owner)}'`);
      const of = value("of", "token");
      check(of === "token" || of === "response", `${name}(of='${of}'): expected 'token' or 'response'`);
      check(of === "token" || owner.level < 2,
        `${name}(of='response') ranks responses, and '${rules.text(owner)}' has one value per token`);
      const counted = of === "token" ? 2 : 1;
      if (name === "bottom_to_mean") {
        const limit = value(key);
        check(Number.isFinite(limit), `${name}(): the limit must be a number, got ${limit}`);
        return this.node("mean_cut", owner.from, { by, within, counted, limit, parts, isRule: true, level: 2 });
      }
      const fraction = value(key);
      check(typeof fraction === "number" && fraction >= 0 && fraction <= 1,
        `${name}(): the fraction must lie in [0, 1], got ${fraction}`);
      const round = value("round", "ceil");
      check(["ceil", "floor", "linear"].includes(round),
        `round='${round}': expected 'ceil', 'floor' or 'linear'`);
      const fields = { name, by, within, counted, fraction, parts, isRule: name !== "quantile" };
      if (name === "quantile") return this.node("quantile", owner.from, { ...fields, level: levels[by] });
      const sizes = { round, at_least: size("at_least"), none_below: size("none_below") };
      return this.node("cut", owner.from, { ...fields, ...sizes, level: counted });
    }
  }

  return {
    known: { columns: new Set(), controllers: new Set(), notes: {} },
    DERIVED,
    parse: (text) => new Parser(String(text), rules.known).whole(),
    text: (node) => node.source.slice(node.from, node.to),
    walk: (node) => [node, ...node.parts.flatMap(rules.walk)],
    names(node) {
      const columns = rules.walk(node).filter((each) => each.kind === "column");
      return [...new Set(columns.flatMap(({ name }) => DERIVED[name] ?? [name]))].sort();
    },
  };
})();
