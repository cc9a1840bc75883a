// <ff-try>: pick items, or a user of the log, and see the recommendations change.

import { ApiError, call, known, learn, model, note, userPath } from "./api.js";
import { build, chips, labels, message, nameOf, paused, plural, put, sentence } from "./dom.js";
import { ranking } from "./ranking.js";
import { link, remember } from "./route.js";
import { conditions, read, written } from "./rules.js";

const SHOWN = 15; // items of a long history

class Try extends HTMLElement {
  /** Build the controls and their places; called once, when the view is first shown. */
  prepare(about) {
    this.about = about;
    this.history = build("div");
    this.picked = build("ul.chips", { "aria-label": "Picked items" });
    this.none = build("p.hint");
    this.answer = build("div", { "aria-busy": "false" });
    this.count = build("p.hidden", { role: "status" });
    this.picker = build("ff-picker", {
      kind: "items", label: "Add an item", hint: "Type a part of its name", onpick: (event) => this.add(event.detail),
    });
    this.users = build("ff-picker", {
      kind: "users", label: "Pick a user", hint: "Type a part of the id",
      onpick: (event) => this.set({ user: String(event.detail.user) }),
    });
    this.modes = ["items", "user"].map((mode) => build("input", {
      type: "radio", name: "mode", id: `mode-${mode}`, value: mode, onchange: () => this.set({ mode }),
    }));
    this.append(
      build("h1", {}, "Try it"),
      build("p.lead", {}, "Pick what somebody has, and see what the model would recommend."),
      build("div.columns", {},
        build("section.card", { "aria-labelledby": "given" },
          build("h2", { id: "given" }, "Given"),
          about.has.users && build("div.segments", { role: "radiogroup", "aria-label": "For whom" },
            this.modes.map((mode, i) => [mode,
              build("label", { for: mode.id }, ["Items I pick", "A user of the log"][i])])),
          this.picker, this.users, this.history, this.options(Object.keys(about.attributes))),
        build("section.card", { "aria-labelledby": "recommended" },
          build("h2", { id: "recommended" }, "Recommended"), this.count, this.answer)));
  }

  options(columns) {
    const gather = paused(60, () => this.set({
      k: this.k.valueAsNumber || this.state.k, diversity: this.diversity.valueAsNumber, by: this.by.value,
      seen: this.seen.checked, explain: this.explain.checked,
    }));
    const changed = () => {
      this.answer.setAttribute("aria-busy", "true");
      gather();
    };
    const control = (name, type, more) => build("input", { id: `try-${name}`, type, oninput: changed, ...more });
    this.k = control("k", "number", { min: 1, max: 100, step: 1 });
    this.diversity = control("diversity", "range", { min: 0, max: 1, step: 0.05 });
    this.amount = build("output", { for: "try-diversity" });
    this.by = build("select", { id: "try-by", onchange: changed },
      build("option", { value: "" }, "what users have together"),
      columns.map((name) => build("option", { value: name }, name)));
    this.different = build("div", {}, build("label", { for: "try-by" }, "Different by"), this.by);
    this.seen = control("seen", "checkbox");
    this.explain = control("explain", "checkbox");
    this.rules = build("ff-rules", { onchange: (event) => event.detail && this.set({ rules: event.detail }) });
    this.rules.columns = this.about.attributes;
    this.summary = build("summary");
    return build("details", { open: matchMedia("(min-width: 761px)").matches }, this.summary,
      build("div.options", {},
        build("div", {}, build("label", { for: "try-k" }, "How many"), this.k),
        build("div", {}, build("label", { for: "try-diversity" }, "Diversity ", this.amount), this.diversity),
        this.different,
        build("label.check", {}, this.explain, "Explain each by what is given"),
        build("label.check", {}, this.seen, "Include what is given")),
      columns.length > 0 && [build("h3", {}, "Rules"), this.rules]);
  }

  async show(parameters) {
    if (!this.about) this.prepare(await model());
    const number = (name, otherwise) => Number(parameters.get(name) ?? otherwise) || otherwise;
    this.state = {
      mode: parameters.get("user") && this.about.has.users ? "user" : "items",
      items: [...new Set(parameters.getAll("item"))],
      user: parameters.get("user") ?? "",
      k: Math.round(number("k", 10)), diversity: number("diversity", 0), by: parameters.get("by") ?? "",
      seen: parameters.has("seen"), explain: !parameters.has("plain"),
      rules: parameters.getAll("rule").map(read).filter(Boolean),
    };
    if (parameters.get("mode") === "user" && this.about.has.users) this.state.mode = "user";
    await this.render();
  }

  /** Change the state, put it into the link, and ask again. */
  set(change) {
    Object.assign(this.state, change);
    const { mode, items, user, k, diversity, by, seen, explain, rules } = this.state;
    remember("try", {
      mode: mode === "user" ? mode : "", item: mode === "items" ? items : [], user: mode === "user" ? user : "",
      k: k === 10 ? "" : k, diversity: diversity || "", by, seen: seen ? 1 : "", plain: explain ? "" : 1,
      rule: rules.map(written),
    });
    return this.render();
  }

  add(entry) {
    note(entry);
    return this.set({ mode: "items", items: [...new Set([...this.state.items, String(entry.item)])] });
  }

  render() {
    const { mode, k, diversity, by, seen, explain, rules } = this.state;
    for (const one of this.modes) one.checked = one.value === mode;
    if (this.k.valueAsNumber !== k) this.k.value = k;
    this.diversity.value = diversity;
    this.amount.textContent = diversity ? diversity.toFixed(2) : "off";
    this.by.value = by;
    this.different.hidden = !diversity;
    this.seen.checked = seen;
    this.explain.checked = explain;
    this.rules.rules = rules;
    this.summary.textContent = rules.length ? `Options (${plural(rules.length, "rule")})` : "Options";
    this.picker.hidden = mode !== "items";
    this.users.hidden = mode !== "user";
    if (mode === "items") this.renderItems();
    return this.ask();
  }

  renderItems(unknown = []) {
    const { items } = this.state;
    const entries = items.map((id) => ({ text: nameOf(known.get(id) ?? { item: id }).name, unknown: unknown.includes(id) }));
    if (this.picked.parentNode !== this.history) put(this.history, this.picked, this.none);
    chips(this.picked, entries, (i) => this.set({ items: items.filter((_, other) => other !== i) }), this.picker);
    put(this.none, items.length === 0 && "Nothing picked yet. Type above, or add one of those recommended.",
      items.length > 1 && build("button.link", { type: "button", onclick: () => {
        this.set({ items: [] });
        this.picker.focus();
      } }, "Remove all"));
  }

  async renderUser(user, signal) {
    const found = await call(userPath(user), { signal });
    found.history.forEach(note);
    const rows = found.history.map((entry) => build("li", {},
      build("a.name", { href: link("similar", { item: entry.item }) }, nameOf(entry).name),
      build("span.labels", {}, labels(entry), entry.from === "feedback" && build("span.label.new", {}, "feedback"))));
    const rest = rows.slice(SHOWN);
    const more = rest.length > 0 && build("button.link", { type: "button", onclick: () => {
      list.append(...rest);
      more.remove();
    } }, `Show ${rest.length} more`);
    const list = build("ul.history", {}, rows.slice(0, SHOWN));
    put(this.history,
      build("p", {}, build("b", {}, user), ` has ${plural(found.history.length, "item")}`),
      list, more,
      build("p", {}, build("a", { href: link("try", { item: found.history.map((entry) => entry.item) }) },
        "Change this history")));
  }

  async ask() {
    this.aborted?.abort();
    const { signal } = this.aborted = new AbortController();
    const { mode, items, user, k, diversity, by, seen, explain, rules } = this.state;
    if (mode === "user" && !user) {
      this.history.replaceChildren();
      return this.fill(message("empty", "No user picked", "Pick one to see what they have beside what the model recommends to them."));
    }
    this.answer.setAttribute("aria-busy", "true");
    try {
      const query = {
        ...(mode === "user" ? { user } : { history: items }), k, exclude_seen: !seen,
        explain: explain && (mode === "user" || items.length > 0), ...conditions(rules), ...(diversity ? { diversity: { amount: diversity, by: by || null } } : {}),
      };
      const [found] = await Promise.all([
        call("/v1/recommendations", { body: query, signal }),
        mode === "user" ? this.renderUser(user, signal) : null,
      ]);
      if (mode === "items") await learn(items.filter((id) => !(found.unknown ?? []).map(String).includes(id)));
      signal.throwIfAborted();
      this.tell(found);
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      if (mode === "user" && error.status === 404) this.history.replaceChildren();
      this.fill(message("error", "No recommendations", error.message));
      if (!(error instanceof ApiError)) throw error;
    }
    return undefined;
  }

  tell(found) {
    const { mode } = this.state;
    const unknown = (found.unknown ?? []).map(String);
    if (mode === "items") this.renderItems(unknown);
    const notes = [found.note && build("p.notice", {}, sentence(found.note)),
      unknown.length > 0 && build("p.notice", {},
        `Not known to the model, and ignored: ${unknown.join(", ")}. Pick items from the suggestions.`)];
    if (!found.items.length) {
      this.fill(notes.slice(1), message("empty", "Nothing to recommend", ...(found.note ? [found.note] : []),
        this.state.rules.length ? "No item is left that fulfils all rules; remove one of them"
          : "No item is left: everything is given already. Tick “Include what is given”"));
      return;
    }
    const list = ranking(found.items, { add: mode === "items" && ((entry, i) => this.take(entry, i)) });
    const bare = found.items.every((entry) => entry.score >= 0);
    this.fill(...notes, list, build("p.hint", {},
      `Scores order items for one history and are not probabilities. Bars start ${bare ? "at zero" : "below the lowest score"}.`));
    this.count.textContent = plural(found.items.length, "recommendation");
  }

  /** Add a recommended item; the focus goes to the item that takes its place. */
  async take(entry, i) {
    await this.add(entry);
    const buttons = this.answer.querySelectorAll(".ranking button");
    buttons[Math.min(i, buttons.length - 1)]?.focus();
  }

  fill(...content) {
    put(this.answer, content);
    this.answer.setAttribute("aria-busy", "false");
    this.count.textContent = "";
  }
}

customElements.define("ff-try", Try);
