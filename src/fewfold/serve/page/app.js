// The frame around the views: which one is shown, the theme, the key, and whether the server answers.

import { ApiError, model, server, watch } from "./api.js";
import { build, message } from "./dom.js";
import { current } from "./route.js";
import "./picker.js";
import "./rules.js";
import "./try-view.js";
import "./similar-view.js";
import "./quality-view.js";
import "./anchors-view.js";
import "./live-view.js";

const main = document.getElementById("main");
const links = [...document.querySelectorAll("nav [data-view]")];
const views = new Map(); // elements by view, made when first shown

async function route() {
  let { view, parameters } = current();
  if (!links.some((one) => one.dataset.view === view)) view = "try";
  for (const one of links) {
    if (one.dataset.view === view) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  document.title = `${links.find((one) => one.dataset.view === view).textContent} · fewfold`;
  if (!views.has(view)) views.set(view, document.createElement(`ff-${view}`));
  const element = views.get(view);
  if (element.parentNode !== main) {
    main.replaceChildren(element);
    scrollTo(0, 0);
  }
  main.setAttribute("aria-busy", "true");
  try {
    await element.show(parameters);
    main.querySelector(":scope > .error")?.remove();
  } catch (error) {
    if (element.parentNode === main) {
      main.replaceChildren(element, message("error", "This view cannot be shown", error.message));
    }
    if (!(error instanceof ApiError)) throw error;
  } finally {
    main.setAttribute("aria-busy", "false");
  }
}

async function describe() {
  const about = await model().catch(() => null);
  if (!about) return;
  document.getElementById("served").replaceChildren(
    build("b", {}, about.kind), ` model `, build("code", { title: "Version of the model" }, about.model.slice(0, 8)));
}

/** Show the current view again. */
function renew() {
  describe();
  route();
}

const banner = document.getElementById("connection");
server.addEventListener("offline", () => {
  banner.replaceChildren(build("p.offline", {}, "The server does not answer. The page tries again until it does."));
});
server.addEventListener("online", () => {
  banner.replaceChildren();
  renew();
});
server.addEventListener("model", () => {
  banner.replaceChildren(build("p.changed", {}, "Another model has taken over; this page shows its answers."));
  views.clear(); // nothing of the old model stays
  setTimeout(() => banner.querySelector(".changed")?.remove(), 8_000);
  renew();
});

const dialog = document.getElementById("key");
server.addEventListener("key", ({ detail }) => {
  const input = document.getElementById("key-value");
  document.getElementById("key-error").textContent = detail.wrong ? "That key was not accepted." : "";
  input.value = "";
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.onclose = () => detail.give(input.value);
  dialog.showModal();
});

const THEMES = { system: "light", light: "dark", dark: "system" };
const toggle = document.getElementById("theme");
function theme(name) {
  if (name === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("fewfold-theme");
  } else {
    document.documentElement.dataset.theme = name;
    localStorage.setItem("fewfold-theme", name);
  }
  toggle.textContent = `Theme: ${name}`;
}
theme(document.documentElement.dataset.theme ?? "system");
toggle.addEventListener("click", () => theme(THEMES[document.documentElement.dataset.theme ?? "system"]));

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address keeps the state, so the link must not become a part of it
  main.focus();
});

addEventListener("hashchange", (event) => {
  const left = new URL(event.oldURL).hash; // a tab leads back to the state in which it was left
  const tab = links.find((one) => one.dataset.view === left.slice(1).split("?")[0]);
  if (tab) tab.setAttribute("href", left);
  route();
});
route();
describe();
watch();
