// Renders /openapi.json: a section per tag, an entry per operation.

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

const kind = (schema) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `[${kind(schema.items ?? {})}, ...]`;
  if (schema.type === "object" && schema.additionalProperties)
    return `{name: ${kind(schema.additionalProperties)}}`;
  return schema.type ?? "anything";
};

const bounds = (schema) =>
  [
    schema.default !== undefined && `default ${JSON.stringify(schema.default)}`,
    schema.minimum !== undefined && `at least ${schema.minimum}`,
    schema.maximum !== undefined && `at most ${schema.maximum}`,
    schema.description,
  ]
    .filter(Boolean)
    .join("; ");

const table = (rows) =>
  element(
    "table",
    {},
    element("tbody", {}, ...rows.map((row) =>
      element("tr", {},
        element("th", { scope: "row" }, element("code", { textContent: row[0] })),
        ...row.slice(1).map((cell) => element("td", { textContent: cell }))))),
  );

const media = ([type, { schema }]) => element("p", {}, `${type}: `, element("code", { textContent: kind(schema) }));

const operation = (method, path, about) => {
  const entry = element("details", { id: about.operationId });
  entry.append(element("summary", {},
    element("code", { className: "method", textContent: method.toUpperCase() }),
    element("code", { textContent: path }), ` ${about.summary}`));
  if (about.parameters) {
    entry.append(element("h4", { textContent: "Parameters" }));
    entry.append(table(about.parameters.map((one) =>
      [one.name, one.in, kind(one.schema), bounds({ ...one.schema, description: one.description })])));
  }
  if (about.requestBody) {
    entry.append(element("h4", { textContent: "Body" }));
    entry.append(...Object.entries(about.requestBody.content).map(media));
  }
  entry.append(element("h4", { textContent: "Answers" }));
  entry.append(table(Object.entries(about.responses).map(([status, one]) =>
    [status, one.description, Object.values(one.content).map(({ schema }) => kind(schema)).join()])));
  return entry;
};

const shape = ([name, schema]) => {
  const rows = Object.entries(schema.properties ?? {}).map(([field, one]) => [field, kind(one), bounds(one)]);
  return element("details", { id: name },
    element("summary", {}, element("code", { textContent: name }), ` ${schema.description ?? ""}`), table(rows));
};

const show = (description) => {
  const groups = Map.groupBy
    ? Map.groupBy(Object.entries(description.paths), ([, methods]) => Object.values(methods)[0].tags[0])
    : Object.entries(description.paths).reduce((found, entry) => {
        const tag = Object.values(entry[1])[0].tags[0];
        return found.set(tag, [...(found.get(tag) ?? []), entry]);
      }, new Map());
  const main = document.querySelector("main");
  main.replaceChildren(element("p", { textContent: description.info.description }));
  for (const [tag, paths] of groups) {
    main.append(element("h2", { textContent: tag }));
    for (const [path, methods] of paths)
      for (const [method, about] of Object.entries(methods)) main.append(operation(method, path, about));
  }
  main.append(element("h2", { textContent: "data" }));
  main.append(...Object.entries(description.components.schemas).map(shape));
};

const load = async () => {
  const state = document.querySelector("#state");
  const form = document.querySelector("#key");
  const key = sessionStorage.getItem("fewfold.key");
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  try {
    const response = await fetch("/openapi.json", { headers });
    form.hidden = response.status !== 401;
    if (!response.ok) {
      state.textContent = (await response.json()).error.message;
      return;
    }
    show(await response.json());
    state.textContent = "";
  } catch (error) {
    state.textContent = `The server does not answer: ${error.message}`;
  }
};

document.querySelector("#key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("fewfold.key", new FormData(event.target).get("key"));
  load();
});
load();
