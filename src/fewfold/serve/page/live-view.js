// <ff-live>: what the server does now, and the last minutes as small lines.

import { ApiError, call } from "./api.js";
import { sparkline } from "./charts.js";
import { build, bytes, count, duration, facts, message, plural } from "./dom.js";

const EVERY = 2_000;
const KEPT = 150; // samples, five minutes

const TILES = {
  "Requests per second": [(found) => found.requests_per_second, (x) => x.toFixed(1)],
  "Latency, median": [(found) => found.latency_ms.p50, ms],
  "Latency, 90 %": [(found) => found.latency_ms.p90, ms],
  "Latency, 99 %": [(found) => found.latency_ms.p99, ms],
  "Users per batch": [(found) => found.batch_size.mean, (x) => x.toFixed(1)],
};

function ms(x) {
  return `${x < 10 ? x.toFixed(2) : x.toFixed(0)} ms`;
}

class Live extends HTMLElement {
  connectedCallback() {
    if (!this.tiles) this.prepare();
    this.timer = setInterval(() => !document.hidden && this.sample(), EVERY);
  }

  disconnectedCallback() {
    clearInterval(this.timer);
  }

  prepare() {
    this.samples = Object.fromEntries(Object.keys(TILES).map((name) => [name, []]));
    this.tiles = build("div.tiles");
    this.about = build("div");
    this.problem = build("div");
    this.append(build("h1", {}, "Live"),
      build("p.lead", {}, "The last minute of this server; the lines go back five minutes while this view is open."),
      this.problem, this.tiles,
      build("section.card", { "aria-label": "Server" }, build("h2", {}, "Server"), this.about));
  }

  async show() {
    await this.sample();
  }

  async sample() {
    let found;
    try {
      found = await call("/v1/stats");
    } catch (error) {
      this.problem.replaceChildren(message("error", "No figures", error.message));
      if (!(error instanceof ApiError)) throw error;
      return;
    }
    this.problem.replaceChildren();
    this.tiles.replaceChildren(...Object.entries(TILES).map(([name, [value, format]]) => {
      const line = this.samples[name], now = value(found) ?? 0;
      line.push(now);
      if (line.length > KEPT) line.shift();
      return build("section.card.tile", { "aria-label": name },
        build("h2", {}, name), build("p.figure", {}, format(now)), sparkline(line, `${name}, recent values`));
    }));
    const loaded = (Date.now() - Date.parse(found.loaded)) / 1000;
    this.about.replaceChildren(facts([
      ["Model", build("code", {}, found.model)], ["Loaded", `${duration(Math.max(0, loaded))} ago`],
      ["Reloads", count(found.reloads)], ["Largest batch", plural(found.batch_size.max, "user")],
      ["Requests", count(found.requests)], ["Errors", count(found.errors)], ["Processes", count(found.workers)],
      ["Up for", duration(found.uptime_s)], ["Memory", bytes(found.memory_bytes)],
    ]));
  }
}

customElements.define("ff-live", Live);
