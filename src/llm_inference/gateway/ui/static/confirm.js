// A question before something is done that others would notice.

import { button, h } from "./dom.js";

export class Confirm {
  constructor() {
    this.title = h("h2", { id: "confirm-title" });
    this.text = h("p", { id: "confirm-text" });
    this.yes = button("", () => this.element.close("yes"), { class: "primary" });
    this.element = h(
      "dialog",
      { "aria-labelledby": "confirm-title", "aria-describedby": "confirm-text" },
      this.title,
      this.text,
      h("p", { class: "buttons" }, button("Cancel", () => this.element.close("")), this.yes),
    );
    document.body.append(this.element);
  }

  /** Whether the answer is `verb`. Escape is a no. */
  ask(title, text, verb) {
    this.title.textContent = title;
    this.text.textContent = text;
    this.yes.textContent = verb;
    this.element.returnValue = "";
    this.element.showModal();
    return new Promise((resolve) => {
      this.element.addEventListener("close", () => resolve(this.element.returnValue === "yes"), { once: true });
    });
  }
}
