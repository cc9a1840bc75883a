// <ff-anchors>: what each anchor of the tables groups, and how small they make the model.

import { call, model } from "./api.js";
import { bar, build, bytes, count, message, plural, table } from "./dom.js";
import { link } from "./route.js";

class Anchors extends HTMLElement {
  async show() {
    const about = await model();
    if (this.shown === about) return;
    this.replaceChildren(build("h1", {}, "Anchors"), build("p.lead", {},
      "A model with anchors stores a few vectors, and each item as a mix of very few of them."));
    if (!about.has.anchors) {
      this.append(build("section.card", { "aria-label": "No anchors" },
        message("empty", "This model has no anchors",
          `It is of the kind ${about.kind}. Anchors make the tables of a FastVAE tens of times smaller, for a little quality:`),
        build("pre", { tabindex: "0" }, "fewfold fit --model fastvae --anchors auto --out model --overwrite")));
      this.shown = about;
      return;
    }
    const found = await call("/v1/anchors");
    this.append(this.sizes(found), this.groups(found));
    this.shown = about;
  }

  sizes({ anchors, sizes }) {
    const dense = sizes["dense bytes"], anchored = sizes["anchored bytes"];
    return build("section.card", { "aria-label": "Sizes" },
      build("h2", {}, "Sizes"),
      build("p", {}, `${plural(anchors.length, "anchor")} in use: the tables are ${(dense / anchored).toFixed(1)} times smaller.`),
      build("div.compare", {}, [["Dense", dense], ["Anchors", anchored]].map(([name, n]) => [
        build("span", {}, name), bar(n / dense, "wide"), build("span.number", {}, bytes(n))])));
  }

  groups({ anchors }) {
    const most = Math.max(...anchors.map((one) => one.items), 1);
    const labelled = anchors.some((one) => one.label);
    return build("section.card", { "aria-label": "Groups" },
      build("h2", {}, "What each groups"),
      build("p", {}, "The items with the largest share of each anchor; follow one to the items around it."),
      table("Anchors and their top items", ["Anchor", "Items", "", ...(labelled ? ["Mostly"] : []), "Top items"],
        anchors.map((one) => [String(one.anchor), count(one.items), bar(one.items / most),
          ...(labelled ? [one.label ?? ""] : []),
          build("span.inline", {}, one.top.map((top) =>
            build("a", { href: link("similar", { item: top.item }), title: `weight ${top.weight.toFixed(3)}` }, String(top.item))))])));
  }
}

customElements.define("ff-anchors", Anchors);
