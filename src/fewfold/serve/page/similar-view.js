// <ff-similar>: walk from item to item; the way taken is a trail of links.

import { ApiError, call, itemPath, known, learn } from "./api.js";
import { build, labels, message, nameOf, plural, put } from "./dom.js";
import { ranking } from "./ranking.js";
import { link } from "./route.js";

const LONGEST = 12; // items of a trail

class Similar extends HTMLElement {
  prepare() {
    this.picker = build("ff-picker", {
      kind: "items", label: "Start from an item", hint: "Type a part of its name",
      onpick: (event) => { location.hash = link("similar", { item: event.detail.item }); },
    });
    this.content = build("div");
    this.append(
      build("h1", {}, "Similar items"),
      build("p.lead", {}, "Items that the model takes for alike. Follow one to see what is around it."),
      build("section.card", { "aria-label": "Start" }, this.picker), this.content);
  }

  async show(parameters) {
    if (!this.picker) this.prepare();
    this.aborted?.abort();
    const { signal } = this.aborted = new AbortController();
    const id = parameters.get("item");
    this.content.setAttribute("aria-busy", "true");
    try {
      await (id ? this.showItem(id, parameters.getAll("trail"), signal) : this.showPopular(signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      const unknown = error.status === 404;
      this.tell(message("error", unknown ? `There is no item “${id}”` : "No answer",
        unknown ? "It may be spelled differently; the suggestions above know all names." : error.message));
      if (!(error instanceof ApiError)) throw error;
    }
  }

  async showItem(id, trail, signal) {
    const [about, found] = await Promise.all([
      call(itemPath(id), { signal }), call(itemPath(id, "/similar?k=15"), { signal }), learn(trail),
    ]);
    const further = [...trail, id].slice(-LONGEST);
    this.tell(
      trail.length > 0 && build("nav.trail", { "aria-label": "Trail" }, build("ol", {},
        trail.map((one, i) => build("li", {},
          build("a", { href: link("similar", { item: one, trail: trail.slice(0, i) }) }, nameOf(known.get(one) ?? { item: one }).name))),
        build("li", { "aria-current": "page" }, nameOf(about).name))),
      build("section.card", { "aria-labelledby": "around" },
        build("h2", { id: "around", tabindex: "-1" }, nameOf(about).name),
        build("p.meta", {}, labels(about), about.users != null && build("span", {}, `${plural(about.users, "user")} in the log`)),
        build("p", {}, build("a", { href: link("try", { item: id }) }, "Recommend to somebody who has it")),
        found.items.length
          ? ranking(found.items, { walk: (entry) => link("similar", { item: entry.item, trail: further }) })
          : message("empty", "Nothing is similar to it", about.known
            ? "The model has no other item that goes with it."
            : "Nobody in the log has it, so the model knows nothing about it.")));
    if (document.activeElement === document.body) { // the link that was followed is gone
      document.getElementById("around").focus({ preventScroll: true });
      this.content.scrollIntoView({ block: "nearest" });
    }
  }

  async showPopular(signal) {
    const found = await call("/v1/items?limit=12", { signal });
    this.tell(build("section.card", { "aria-labelledby": "popular" },
      build("h2", { id: "popular" }, "Or begin with a popular one"),
      build("ul.starts", {}, found.items.map((entry) => build("li", {},
        build("a", { href: link("similar", { item: entry.item }) }, nameOf(entry).name),
        entry.users != null && build("small.muted", {}, plural(entry.users, "user")))))));
  }

  tell(...content) {
    put(this.content, content);
    this.content.setAttribute("aria-busy", "false");
  }
}

customElements.define("ff-similar", Similar);
