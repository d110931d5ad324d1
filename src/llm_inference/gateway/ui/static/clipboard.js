// Copying text, also where the page did not come over TLS and browsers offer no clipboard.

import { announce, button, h } from "./dom.js";

export async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  const host = document.querySelector("dialog[open]") ?? document.body; // only what is in the dialog can be focused
  const focused = document.activeElement;
  host.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!done) throw new Error("the browser refused");
}

/** A button that copies what `text()` gives when it is pressed, and says so. */
export function copyButton(text, label = "Copy", properties = {}) {
  const element = button(
    label,
    async () => {
      let said = "Copied";
      try {
        await copy(text());
      } catch {
        said = "Not copied";
      }
      element.textContent = said;
      announce(said);
      setTimeout(() => (element.textContent = label), 1500);
    },
    { class: "small", ...properties },
  );
  return element;
}
