// <ff-rules>: conditions on the attributes of recommended items, and caps per value.

import { build, chips } from "./dom.js";

const WORDS = { is: "is", not: "is not", from: "at least", to: "at most", cap: "at most … of each" };

/** A rule as text for the link and back: `is:section:libdevel`; values may have colons. */
export const written = (rule) => `${rule.kind}:${encodeURIComponent(rule.column)}:${rule.value}`;

export function read(text) {
  const [kind, column = "", ...value] = text.split(":");
  if (!(kind in WORDS) || !value.length) return null;
  return { kind, column: decodeURIComponent(column), value: value.join(":") };
}

/** Return `where` and `at_most` of a request. */
export function conditions(rules) {
  const where = {}, caps = {};
  const of = (kind, column) => rules
    .filter((rule) => rule.kind === kind && rule.column === column).map((rule) => rule.value);
  for (const column of new Set(rules.map((rule) => rule.column))) {
    const [is, not, from, to, cap] = Object.keys(WORDS).map((kind) => of(kind, column));
    if (is.length) where[column] = is.filter((value) => !not.includes(value));
    else if (not.length) where[column] = { not };
    else if (from.length || to.length) {
      where[column] = {};
      if (from.length) where[column].min = Math.max(...from);
      if (to.length) where[column].max = Math.min(...to);
    }
    if (cap.length) caps[column] = Math.min(...cap);
  }
  const given = (found) => (Object.keys(found).length ? found : undefined);
  return { where: given(where), at_most: given(caps) };
}

/** Set `columns` (attributes of the model) and `rules`; dispatches "change". */
class Rules extends HTMLElement {
  set columns(columns) {
    this.known = columns;
    const column = build("select", { id: "rule-column", onchange: () => this.adapt() },
      Object.keys(columns).map((name) => build("option", { value: name }, name)));
    const kind = build("select", { id: "rule-kind", onchange: () => this.adapt() });
    const value = build("input", { id: "rule-value", list: "rule-values", autocomplete: "off", required: true });
    Object.assign(this, { column, kind, value });
    this.values = build("datalist", { id: "rule-values" });
    this.chips = build("ul.chips", { "aria-label": "Rules in force" });
    this.replaceChildren(
      build("form.rule", { onsubmit: (event) => this.add(event) },
        labelled("Attribute", column), labelled("Rule", kind), labelled("Value", value),
        build("button.small", { type: "submit" }, "Add rule"), this.values),
      this.chips);
    this.adapt();
  }

  /** Offer the kinds of rules and the values that suit the chosen column. */
  adapt() {
    const about = this.known[this.column.value] ?? {};
    const kinds = about.values ? ["is", "not", "cap"] : ["from", "to", "cap"];
    const chosen = kinds.includes(this.kind.value) ? this.kind.value : kinds[0];
    this.kind.replaceChildren(...kinds.map((kind) =>
      build("option", { value: kind, selected: kind === chosen }, WORDS[kind])));
    const text = chosen === "is" || chosen === "not";
    this.value.type = text ? "text" : "number";
    this.value.min = chosen === "cap" ? "1" : "";
    this.value.step = chosen === "cap" ? "1" : "any";
    this.value.placeholder = { cap: "3", from: about.min ?? "", to: about.max ?? "" }[chosen] ?? "";
    this.values.replaceChildren(...(text ? about.values ?? [] : []).map((one) =>
      build("option", { value: one })));
  }

  set rules(rules) {
    this.current = rules;
    const texts = rules.map(({ kind, column, value }) =>
      (kind === "cap" ? `at most ${value} of each ${column}` : `${column} ${WORDS[kind]} ${value}`));
    const without = (i) => this.tell(rules.filter((_, other) => other !== i));
    chips(this.chips, texts.map((text) => ({ text })), without, this.value);
  }

  add(event) {
    event.preventDefault();
    const rule = { kind: this.kind.value, column: this.column.value, value: this.value.value.trim() };
    if (!rule.value) return;
    this.value.value = "";
    this.tell([...this.current.filter((one) => written(one) !== written(rule)), rule]);
  }

  tell(rules) {
    this.rules = rules;
    this.dispatchEvent(new CustomEvent("change", { detail: rules }));
  }
}

function labelled(name, control) {
  return build("div", {}, build("label", { for: control.id }, name), control);
}

customElements.define("ff-rules", Rules);
