// DOM elements, created in one expression.

/** An element with these properties and children. `on…` listens, names with a dash are attributes. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name.includes("-") || name === "for" || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** The element of this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Sets a text only if it is another: screen readers speak what changes. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Saves bytes as a file. */
export function save(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Copies a text, and says so on the button for a moment. */
export async function copy(text, button) {
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Without permission or HTTPS there is no clipboard: the text is shown instead.
    button.textContent = "Press Ctrl-C";
    const field = h("textarea", { value: text, class: "by-hand", "aria-label": "To be copied" });
    button.after(field);
    field.select();
    field.addEventListener("blur", () => field.remove());
  }
  setTimeout(() => { button.textContent = before; }, 2_000);
}
