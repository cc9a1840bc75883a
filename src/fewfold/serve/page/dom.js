// Building elements and formatting numbers. Data only ever becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element: `build("p.muted", {id: "x", onclick: f}, "text", child, [more])`. */
export function build(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return fill(document.createElement(tag), classes, attributes, children);
}

/** The same for an element of SVG. */
export function draw(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return fill(document.createElementNS(SVG, tag), classes, attributes, children);
}

function fill(element, classes, attributes, children) {
  element.classList.add(...classes);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(9).filter((child) => child != null && child !== false));
  return element;
}

/** Replace the content of an element; false and null are left out. */
export function put(element, ...children) {
  element.replaceChildren();
  return fill(element, [], {}, children);
}

/** A horizontal bar for a share from 0 to 1; its number is written beside it. */
export function bar(share, kind = "") {
  const inside = build("i");
  inside.style.width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
  return build(kind ? `span.meter.${kind}` : "span.meter", { "aria-hidden": "true" }, inside);
}

const written = (value) => String(value?.textContent ?? value ?? "");
const isNumber = (value) => /^[-+−]?[\d.,]+( (%|s|ms|B|kB|MB|GB))?$/.test(written(value));

/** A table in a box that scrolls by itself; columns of numbers are set to the right. */
export function table(caption, heads, rows) {
  const kinds = heads.map((_, i) => (rows.length && rows.every((row) => isNumber(row[i])) ? "number"
    : rows.every((row) => written(row[i]).length <= 22) ? "short" : "long"));
  const cell = (tag, i, content, more) => build(`${tag}.${kinds[i]}`, more, content);
  return build("div.scroll", { tabindex: "0", role: "region", "aria-label": caption },
    build(heads.length < 3 ? "table.narrow" : "table", {},
      build("thead", {}, build("tr", {}, heads.map((head, i) => cell("th", i, head, { scope: "col" })))),
      build("tbody", {}, rows.map((row) => build("tr", {}, row.map((value, i) =>
        (i ? cell("td", i, value) : cell("th", i, value, { scope: "row" }))))))));
}

/** Fill a list with labels that can be removed; a focus in it stays at its place, or goes to `otherwise`. */
export function chips(list, entries, remove, otherwise) {
  const focused = [...list.querySelectorAll("button")].indexOf(document.activeElement);
  put(list, entries.map(({ text, unknown }, i) => build(unknown ? "li.unknown" : "li", {},
    text, unknown && build("small", {}, " not known"),
    build("button.remove", { type: "button", "aria-label": `Remove ${text}`, onclick: () => remove(i) }))));
  const left = list.querySelectorAll("button");
  if (focused >= 0) (left[Math.min(focused, left.length - 1)] ?? otherwise).focus();
}

/** A definition list of names and values; those without a value are left out. */
export function facts(pairs) {
  return build("dl.facts", {}, pairs
    .filter(([, value]) => value != null && value !== "")
    .map(([name, value]) => build("div", {}, build("dt", {}, name), build("dd", {}, value))));
}

/** A text of the server as a sentence. */
export const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?:]$/.test(text) ? "" : "."}`;

/** A message where something went wrong or is empty: kind is "error", "notice" or "empty". */
export function message(kind, title, ...more) {
  return build(`div.${kind}`, kind === "error" ? { role: "alert" } : {},
    build("strong", {}, title), more.map((one) => build("p", {}, sentence(one))));
}

export const count = (n) => Number(n).toLocaleString("en-US");
export const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;
export const fixed = (x, digits = 4) => Number(x).toFixed(digits);
export const percent = (x) => `${Math.round(100 * x)}\u00a0%`;

/** Bytes with three digits: 1.46 MB. */
export function bytes(n) {
  const unit = n < 1e3 ? 0 : n < 1e6 ? 1 : n < 1e9 ? 2 : 3;
  return `${Number((n / 1000 ** unit).toPrecision(3))} ${["B", "kB", "MB", "GB"][unit]}`;
}

/** A duration in words: 42 s, 5 min, 3 h, 2 days. */
export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/** Whether a column has the names of items, by what it is called. */
export const isName = (column) => /(^|[_ ])(name|title)$/i.test(column);

/** The name to show for an item: that of a column of names, otherwise the id. */
export function nameOf(entry) {
  const column = Object.keys(entry.attributes ?? {}).find(isName);
  return column ? { name: entry.attributes[column], column } : { name: String(entry.item) };
}

/** The attributes of an item as small labels, without the one that is its name. */
export function labels(entry) {
  const { column } = nameOf(entry);
  const shown = Object.entries(entry.attributes ?? {}).filter(([name]) => name !== column);
  const parts = column ? [["id", String(entry.item)], ...shown] : shown;
  return parts.map(([name, value]) => [build("span.label", {}, build("span", {}, `${name} `), String(value)), " "]);
}

/** Call a function once the calls have paused for so many milliseconds. */
export function paused(wait, run) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), wait);
  };
}
