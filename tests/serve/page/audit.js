// Checks of accessibility, run in the page; returns what is wrong, as texts.
() => {
  const wrong = [];
  const shown = (element) => element.checkVisibility({ opacityProperty: false, visibilityProperty: true });
  const where = (element) => `${element.tagName.toLowerCase()}${element.id ? `#${element.id}` : ""}.${[...element.classList].join(".")}`;

  // Everything that can be used has a name.
  const named = (element) => {
    const by = (element.getAttribute("aria-labelledby") ?? "").split(" ")
      .map((id) => document.getElementById(id)?.textContent ?? "").join("");
    const labels = [...(element.labels ?? [])].map((one) => one.textContent).join("");
    const images = [...element.querySelectorAll("img")].map((one) => one.alt).join("");
    return [element.getAttribute("aria-label"), by, labels, element.textContent, images].some((one) => one?.trim());
  };
  for (const element of document.querySelectorAll("a, button, input, select, textarea, [role=listbox], [tabindex='0'], svg[role=img], dialog[open]")) {
    if (shown(element) && !named(element)) wrong.push(`no name: ${where(element)}`);
  }
  for (const image of document.querySelectorAll("img")) {
    if (!image.hasAttribute("alt")) wrong.push(`no alt: ${where(image)}`);
  }

  // References lead somewhere and ids are unique.
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`id twice: ${id}`);
  for (const name of ["for", "aria-controls", "aria-labelledby", "aria-activedescendant", "list"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      if (!document.getElementById(element.getAttribute(name))) wrong.push(`${name} of ${where(element)} leads nowhere`);
    }
  }

  // Landmarks and headings.
  for (const tag of ["header", "header nav", "main", "footer", "main h1"]) {
    if (document.querySelectorAll(tag).length !== 1) wrong.push(`not one ${tag}`);
  }
  if (!document.documentElement.lang) wrong.push("no language");
  let level = 1;
  for (const heading of document.querySelectorAll("main :is(h1, h2, h3, h4)")) {
    if (!shown(heading)) continue;
    const own = Number(heading.tagName[1]);
    if (own > level + 1) wrong.push(`h${own} after h${level}: ${heading.textContent}`);
    level = own;
  }

  // Contrast of all text against what is behind it.
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = (front, back) => [0, 1, 2].map((i) => front[3] * front[i] + (1 - front[3]) * back[i]).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((back, front) => over(front, back), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  let texts = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (seen.has(element) || !walk.currentNode.textContent.trim() || !shown(element)) continue;
    seen.add(element);
    const style = getComputedStyle(element);
    const back = behind(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const found = contrast(over(parse(colour), back), back);
    texts += 1;
    if (found < 4.5) wrong.push(`contrast ${found.toFixed(2)}: ${where(element)} “${element.textContent.slice(0, 30)}”`);
  }
  for (const input of document.querySelectorAll("input[placeholder]")) {
    if (!shown(input) || !input.placeholder) continue;
    const back = behind(input);
    const found = contrast(over(parse(getComputedStyle(input, "::placeholder").color), back), back);
    if (found < 4.5) wrong.push(`contrast ${found.toFixed(2)} of the placeholder of ${where(input)}`);
  }
  if (texts < 10) wrong.push(`only ${texts} texts were looked at`);
  return wrong;
}
