// Where a message is written: Enter sends, Shift+Enter is a new line, and what runs can be stopped.

import { button, h } from "./dom.js";

export class Composer {
  constructor({ onsend, onstop }) {
    this.onsend = onsend;
    this.input = h("textarea", {
      id: "message",
      rows: "2",
      placeholder: "Write a message",
      onkeydown: (event) => this.#key(event),
      oninput: () => this.#grow(),
    });
    this.send = h("button", { type: "submit", class: "primary" }, "Send");
    this.stop = button("Stop", onstop, { class: "primary stop", hidden: true });
    this.element = h(
      "form",
      {
        class: "composer",
        onsubmit: (event) => {
          event.preventDefault();
          this.#submit();
        },
      },
      h("label", { for: "message", class: "unseen" }, "Message"),
      this.input,
      this.send,
      this.stop,
    );
  }

  get text() {
    return this.input.value.trim();
  }

  set text(value) {
    this.input.value = value;
    this.#grow();
  }

  set running(value) {
    const focused = this.element.contains(document.activeElement) && document.activeElement !== this.input;
    this.send.hidden = value;
    this.stop.hidden = !value;
    if (focused) (value ? this.stop : this.input).focus(); // a hidden button would drop the focus
  }

  #submit() {
    if (this.text && !this.send.hidden) this.onsend(this.text);
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#submit();
  }

  #grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, 240)}px`;
  }
}
