// <ff-picker>: an input with suggestions of the server, for the mouse and for the keyboard.

import { call } from "./api.js";
import { build, labels, nameOf, paused, plural } from "./dom.js";

let numbers = 0;

/** Dispatches "pick" with the chosen entry. Attributes: label, kind ("items" or "users"), hint. */
class Picker extends HTMLElement {
  connectedCallback() {
    if (this.firstChild) return;
    const id = `picker-${++numbers}`;
    this.kind = this.getAttribute("kind");
    this.entries = [];
    this.active = -1;
    this.input = build("input", {
      id, type: "text", role: "combobox", autocomplete: "off", spellcheck: "false",
      "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": `${id}-list`,
      placeholder: this.getAttribute("hint") ?? "",
      onkeydown: (event) => this.key(event),
      oninput: () => this.later(),
      onclick: () => this.list.hidden && this.search(),
      onblur: () => this.close(),
    });
    this.list = build("ul.suggestions", {
      id: `${id}-list`, role: "listbox", "aria-label": "Suggestions", hidden: true,
      onmousedown: (event) => event.preventDefault(), // the input keeps the focus
    });
    this.status = build("p.hint", { role: "status" });
    this.later = paused(120, () => this.search());
    this.append(build("label", { for: id }, this.getAttribute("label")),
      build("div.combobox", {}, this.input, this.list), this.status);
  }

  focus() {
    this.input.focus();
  }

  async search() {
    this.aborted?.abort();
    this.aborted = new AbortController();
    const text = this.input.value.trim();
    const query = new URLSearchParams({ search: text, limit: "12" });
    try {
      const found = await call(`/v1/${this.kind}?${query}`, { signal: this.aborted.signal });
      this.show(found[this.kind], text);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.close();
      this.say(error.message, "error");
    }
  }

  show(entries, text) {
    if (document.activeElement !== this.input) return;
    this.entries = entries;
    this.shown = text;
    this.active = entries.length && text ? 0 : -1;
    this.list.replaceChildren(...entries.map((entry, i) => build("li", {
      role: "option", id: `${this.input.id}-${i}`, onclick: () => this.pick(i),
    }, this.describe(entry))));
    this.list.hidden = entries.length === 0;
    this.input.setAttribute("aria-expanded", String(entries.length > 0));
    this.mark();
    const one = this.kind.slice(0, -1);
    if (entries.length) this.say(text ? plural(entries.length, "suggestion") : "", "hidden");
    else this.say(`No ${one} matches “${text}”. Try a part of its name.`);
  }

  describe(entry) {
    if (this.kind === "users") {
      return [build("span", {}, String(entry.user)), build("small", {}, plural(entry.items, "item"))];
    }
    return [build("span", {}, nameOf(entry).name, " ", labels(entry)),
      entry.users != null && build("small", {}, plural(entry.users, "user"))];
  }

  say(text, kind = "") {
    this.status.textContent = text;
    this.status.className = `hint ${kind}`;
  }

  close() {
    this.aborted?.abort();
    this.list.hidden = true;
    this.active = -1;
    this.shown = null;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  mark() {
    [...this.list.children].forEach((option, i) => {
      option.setAttribute("aria-selected", String(i === this.active));
      if (i !== this.active) return;
      this.input.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    });
    if (this.active < 0) this.input.removeAttribute("aria-activedescendant");
  }

  pick(i) {
    const entry = this.entries[i];
    this.input.value = "";
    this.say("");
    this.close();
    this.dispatchEvent(new CustomEvent("pick", { detail: entry, bubbles: true }));
  }

  async key(event) {
    const last = this.entries.length - 1;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      if (this.list.hidden) return this.search();
      this.active = (this.active + step + last + 1) % (last + 1);
      return this.mark();
    }
    if (event.key === "Escape" && !this.list.hidden) {
      event.preventDefault();
      this.close();
    } else if (event.key === "Enter" && (this.active >= 0 || this.input.value.trim())) {
      event.preventDefault();
      // Typed faster than answered: what is picked must be of the text that is there now.
      if (this.shown !== this.input.value.trim()) await this.search();
      if (this.active >= 0) this.pick(this.active);
    }
  }
}

customElements.define("ff-picker", Picker);
