// Elements without a framework. Text is only ever set as text: nothing here, or anywhere on the page, parses HTML.

/**
 * An element. `properties`: `class`, listeners as functions (`onclick`), everything else as attributes; true is an
 * attribute without a value, false, null and undefined are none. Children: nodes, text, or null for nothing.
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A button that does something here, and never submits a form. */
export function button(label, onclick, properties = {}) {
  return h("button", { type: "button", onclick, ...properties }, label);
}

/** Say something to those who listen instead of looking. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
