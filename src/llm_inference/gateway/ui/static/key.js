// The dialog that asks for the API key. It is kept in this tab alone, and forgotten with it.

import { button, h } from "./dom.js";

export class KeyDialog {
  constructor(api) {
    this.api = api;
    this.input = h("input", {
      id: "api-key",
      type: "password",
      autocomplete: "off",
      spellcheck: "false",
      "aria-describedby": "key-hint",
    });
    this.reason = h("p", { class: "problem", role: "alert", hidden: true });
    this.element = h(
      "dialog",
      { "aria-labelledby": "key-title" },
      h(
        "form",
        {
          method: "dialog",
          onsubmit: () => {
            this.api.key = this.input.value.trim();
          },
        },
        h("h2", { id: "key-title" }, "API key"),
        this.reason,
        h("label", { for: "api-key" }, "Key"),
        this.input,
        h("small", { id: "key-hint" }, "Sent to this server with every request. Kept in this tab, and forgotten when it is closed."),
        h(
          "p",
          { class: "buttons" },
          button("Cancel", () => this.element.close()),
          button("Forget", () => {
            this.api.key = "";
            this.element.close();
          }),
          h("button", { type: "submit", class: "primary" }, "Use"),
        ),
      ),
    );
    document.body.append(this.element);
  }

  /** `denied`: the server has just refused the key, or the lack of one. */
  show(denied) {
    this.reason.hidden = !denied;
    this.reason.textContent = this.api.key ? "The server does not know this key." : "This server wants a key.";
    this.input.value = this.api.key;
    if (!this.element.open) this.element.showModal();
    this.input.focus();
  }
}
