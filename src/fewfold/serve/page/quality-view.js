// <ff-quality>: metrics, slices, other models, the training, and what was read.

import { model } from "./api.js";
import { intervals, lineChart } from "./charts.js";
import { bar, build, bytes, count, duration, facts, fixed, message, plural, put, table } from "./dom.js";

class Quality extends HTMLElement {
  async show() {
    const about = await model();
    if (about === this.shown) return;
    this.shown = about;
    put(this,
      build("h1", {}, "How good is it"),
      build("p.lead", {}, `${about.kind} · ${plural(about.counts.items, "item")}`
        + `${about.counts.users ? ` · ${plural(about.counts.users, "user")}` : ""} · ${plural(about.counts.pairs, "interaction")}`),
      card("Metrics", evaluated(about.metrics)),
      hasSlices(about.metrics) && card("By slice", slices(about.metrics)),
      card("Beside other models", compared(about)),
      about.choice && card("Why this model", chosen(about.choice)),
      card("Training", trained(about)),
      card("What was read", whatWasRead(about.data)),
      card("The model", stored(about)));
  }
}

const card = (title, content) =>
  build("section.card", { "aria-label": title }, build("h2", {}, title), content);

const interval = (score) => `${fixed(score.low)} to ${fixed(score.high)}`;

function evaluated(metrics) {
  if (!metrics?.overall) {
    return message("empty", "Not evaluated", "Nothing was held out when this model was fitted. "
      + "“fewfold fit --test 0.2 --refit” holds out a part, evaluates on it, and fits to everything after that.");
  }
  const { scores, users, level } = metrics.overall;
  const ranked = metrics["users ranked"] ?? "all";
  return [
    build("p", {}, `Held out: ${metrics.split}. Each user's held-out items are ranked among all items that the user did not have. `
      + `${ranked === "all" ? plural(users, "user") : ranked}; intervals of ${Math.round(100 * level)} %.`),
    table("Metrics with their intervals", ["Metric", "Mean", "", "Interval", "Formula"],
      Object.entries(scores).map(([name, score]) =>
        [name, fixed(score.mean), bar(score.mean), interval(score), metrics.formulas[name]])),
    metrics["test pairs with an item not seen in training"] > 0 && build("p.hint", {},
      `${count(metrics["test pairs with an item not seen in training"])} of ${count(metrics["test pairs"])} held-out `
      + "interactions are of items that nobody had in training: only attributes can rank these."),
  ];
}

const hasSlices = (metrics) => metrics?.slices && Object.keys(metrics.slices).length > 0;

function slices(metrics) {
  const names = Object.keys(metrics.overall.scores);
  return [
    build("p", {}, "The same, for users with short and long histories and for kinds of items."),
    table("Metrics by slice", ["Slice", "Users", ...names, ""],
      Object.entries(metrics.slices).map(([slice, found]) => [slice, count(found.users),
        ...names.map((name) => (found.scores[name] ? fixed(found.scores[name].mean) : "")),
        bar(found.scores[names[0]]?.mean ?? 0)])),
    build("p.hint", {}, `Bars show ${names[0]}.`),
  ];
}

function compared({ comparison, kind, metrics }) {
  if (!comparison) {
    return message("empty", "No comparison is kept in this model",
      "“fewfold compare LOG --into FOLDER” runs other models on the same split of the log and keeps the result here.");
  }
  const { metric, models, skipped } = comparison;
  const names = Object.keys(models[0].scores);
  const served = metrics?.split === comparison.split ? metrics.overall.scores[metric] : null;
  return [
    build("p", {}, comparison.verdict),
    intervals(`${metric} with its interval; held out: ${comparison.split}. ${served
      ? "The settings of the model that is served may differ from those compared." : ""}`,
      [...(served ? [{ name: "served now", strong: true, ...served }] : []),
        ...models.map((one) => ({ name: one.model, strong: !served && one.model === kind, ...one.scores[metric] }))]),
    table("Models of the comparison",
      ["Model", ...names, "Behind the best", "Fit", "Size", "Users/s", "Settings"],
      models.map((one) => [one.model, ...names.map((name) => fixed(one.scores[name].mean)),
        one["behind the best"] ? `${fixed(one["behind the best"].mean)} (${interval(one["behind the best"])})` : "the best",
        `${fixed(one.seconds, 1)} s`, bytes(one.bytes), count(Math.round(one["users per second"])), one.summary])),
    Object.entries(skipped).map(([name, why]) => build("p.hint", {}, `${name} was left out: ${why}.`)),
    sliced(models, metric),
  ];
}

/** The deciding metric of each model of a comparison, by slice. */
function sliced(models, metric) {
  const names = Object.keys(models[0].slices);
  return names.length > 0 && [build("h3", {}, `${metric} by slice`), table(`${metric} of each model by slice`,
    ["Slice", "Users", ...models.map((one) => one.model)],
    names.map((name) => [name, count(models[0].slices[name].users),
      ...models.map((one) => fixed(one.slices[name]?.scores[metric]?.mean ?? NaN))]))];
}

function chosen(choice) {
  return [
    build("p", {}, choice.why),
    choice.tried.length > 0 && [
      build("p.hint", {}, `Tried on ${plural(choice.users, "user")} of the training part (${choice.split}), never on the held-out part.`),
      table("Models that were tried", ["Model", "NDCG@10", "Against the chosen one", "Size", "Time", "Settings", "Outcome"],
        choice.tried.map((one) => [one.model, fixed(one.ndcg),
          one.outcome === "chosen" ? "" : `${signed(one.gain)} (${signed(one.low)} to ${signed(one.high)})`,
          bytes(one.bytes), `${fixed(one.seconds, 1)} s`, one.settings, one.outcome]))],
    Object.entries(choice["not tried"] ?? {}).map(([name, why]) => build("p.hint", {}, `${name} was not tried: ${why}.`)),
  ];
}

const signed = (x) => `${x < 0 ? "−" : "+"}${fixed(Math.abs(x))}`;

function trained({ curve, kind }) {
  if (!curve?.length) {
    return message("empty", "No training curve", `A model of the kind ${kind} is computed in one go, or was saved before curves were kept.`);
  }
  // A model of two parts has two curves; the numbers of the epochs begin anew.
  const parts = [];
  for (const point of curve) {
    if (!parts.length || point.epoch <= parts.at(-1).at(-1).epoch) parts.push([]);
    parts.at(-1).push(point);
  }
  const lines = (key) => parts
    .map((part) => ({ points: part.filter((point) => point[key] != null).map((point) => [point.epoch, point[key]]) }))
    .filter((line) => line.points.length);
  const [loss, ndcg] = [lines("loss"), lines("ndcg")];
  return [
    build("p", {}, `${plural(curve.length, "epoch")}${parts.length > 1 ? ` in ${parts.length} trainings` : ""}; `
      + `the loss went from ${fixed(curve[0].loss, 3)} to ${fixed(curve.at(-1).loss, 3)}.`),
    build("div.charts", {},
      lineChart("Mean loss per user", loss, "epoch"),
      ndcg.length > 0 && lineChart("NDCG@50 on validation items", ndcg, "epoch")),
  ];
}

function whatWasRead(data) {
  const plan = data.plan ?? {};
  const columns = Object.entries(plan.columns ?? {}).filter(([, column]) => column)
    .map(([role, column]) => `${role} = ${column.name ?? column}`).join(", ");
  const size = (of) => of && `${plural(of.users, "user")}, ${plural(of.items, "item")}, ${plural(of.pairs, "pair")}`;
  const some = (n, words) => (n ? `${count(n)} ${words}` : null);
  const warnings = [
    ...Object.entries(data.bad_rows ?? {}).map(([why, n]) => some(n, `rows were dropped: ${why}`)),
    some(data.left_out, `rows were left out by ${(data.where ?? []).join(" and ")}`),
    some(data.below_rating, `rows were rated below ${data.min_rating}`),
    some(data.stripped, "rows had blanks around an id, which were removed"),
    some(data.untimed, "rows had no time"), some(data.weightless, "rows had a weight of 0 and do not count"),
    ...(data.notes ?? []),
  ].filter(Boolean);
  return [
    facts([
      ["Files", (plan.files ?? []).join(", ")], ["Format", plan.format], ["Columns", columns],
      ["Rows", data.rows != null && count(data.rows)], ["Duplicates merged", data.duplicates ? count(data.duplicates) : ""],
      ["Counts", size(data.after)],
      [`Before the ${data.core}-core`, data.core > 1 ? size(data.before) : ""],
      ["Dislikes", data.disliked ? `${count(data.disliked)}, never recommended to their users` : ""],
      ["Weights", data.weight_scale],
    ]),
    build("h3", {}, "Warnings"),
    warnings.length ? build("ul", {}, warnings.map((one) => build("li", {}, one)))
      : build("p.hint", {}, "None: every row was read as it is."),
  ];
}

/** A setting as text; one that has settings of its own, as a list of them. */
function setting(value) {
  if (typeof value !== "object") return String(value);
  return Object.entries(value).filter(([, inside]) => inside != null)
    .map(([name, inside]) => (name === "kind" ? inside : `${name.replaceAll("_", " ")} ${setting(inside)}`)).join(", ");
}

function stored(about) {
  const settings = Object.entries(about.settings ?? {}).filter(([, value]) => value != null)
    .map(([name, value]) => [name.replaceAll("_", " "), setting(value)]);
  const total = Object.values(about.sizes ?? {}).reduce((sum, n) => sum + n, 0);
  const ago = duration((Date.now() - Date.parse(about.loaded)) / 1000);
  return [
    facts([["Kind", about.kind], ...settings, ["Version", build("code", {}, about.model)], ["Loaded", `${ago} ago`],
      ["On disk", bytes(total)]]),
    table("Files of the model", ["File", "Size"], Object.entries(about.sizes ?? {}).map(([name, n]) => [name, bytes(n)])),
    about.card && build("details", {}, build("summary", {}, "Model card"), build("pre", { tabindex: "0" }, about.card)),
  ];
}

customElements.define("ff-quality", Quality);
