// The state of the page is its link: #view?name=value&name=value, in the part that no server sees.

/** Return the view and its parameters that the address names. */
export function current() {
  const [view, query = ""] = location.hash.slice(1).split("?");
  return { view: view || "try", parameters: new URLSearchParams(query) };
}

/** Return a link to a view; a parameter may be a list, and empty ones are left out. */
export function link(view, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) {
      if (one != null && one !== "") query.append(name, one);
    }
  }
  return `#${view}${query.size ? `?${query}` : ""}`;
}

/** Put the state into the address without a step in the history of the browser. */
export function remember(view, parameters) {
  history.replaceState(null, "", link(view, parameters));
}
