// A ranked list of items: score as a bar, attributes, reasons, and what can be done with each.

import { known } from "./api.js";
import { bar, build, fixed, labels, nameOf, percent } from "./dom.js";
import { link } from "./route.js";

/**
 * Return the list. `add`, if given, is called with the entry of a button "Add"; `walk` makes the
 * link that the name of an item is, by default to the items similar to it.
 */
export function ranking(entries, { add, walk } = {}) {
  const scores = entries.map((entry) => entry.score);
  const top = Math.max(...scores), low = Math.min(...scores);
  // Scores below zero have no natural start of a bar: the last one then keeps a twentieth.
  const start = low >= 0 ? 0 : low - (top - low || 1) / 19;
  const share = (score) => (top > start ? (score - start) / (top - start) : 1);
  const to = walk ?? ((entry) => link("similar", { item: entry.item }));
  return build(add ? "ol.ranking" : "ol.ranking.wide", {}, entries.map((entry, i) => build("li", {},
    build("span.rank", { "aria-hidden": "true" }, String(i + 1)),
    build("div.what", {},
      build("a.name", { href: to(entry), title: "Similar items" }, nameOf(entry).name),
      build("span.labels", {}, labels(entry)),
      entry.because && reasons(entry)),
    build("span.score", {}, bar(share(entry.score)), build("span", {}, fixed(entry.score, Math.abs(entry.score) < 100 ? 3 : 0))),
    add && build("button.small", {
      type: "button", "aria-label": `Add ${nameOf(entry).name} to the history`,
      onclick: () => add(entry, i),
    }, "Add"))));
}

function reasons(entry) {
  const total = entry.because.reduce((sum, one) => sum + one.contribution, 0);
  if (!entry.because.length) {
    return build("p.because", {}, "Popular; no item of the history speaks for it.");
  }
  return build("p.because", {}, "because of ", entry.because.map((one, i) => [
    i > 0 && ", ", build("b", {}, nameOf(known.get(String(one.item)) ?? one).name),
    entry.because.length > 1 && ` ${percent(one.contribution / total)}`,
  ]));
}
