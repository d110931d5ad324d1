// Markdown within a line: code, emphasis, links. Text in, nodes out; never HTML.

import { h } from "./dom.js";

const MAX_DEPTH = 6;
const MAX_CHARS = 20_000; // longer than any honest paragraph: shown as it is
const SAFE = /^(?:https?:\/\/|mailto:)/i;
const BARE = /https?:\/\/[^\s<>"'`]+/iy;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const MARKS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];

/** The nodes of `text`. */
export function inline(text, depth = 0) {
  if (depth > MAX_DEPTH || text.length > MAX_CHARS) return [document.createTextNode(text)];
  return new Scanner(text, depth).nodes();
}

class Scanner {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.place = 0;
    this.plain = "";
    this.found = [];
    this.absent = new Set(); // marks that do not close any more: each is looked for once, so the time is linear
  }

  nodes() {
    while (this.place < this.text.length) {
      if (!(this.escape() || this.code() || this.link() || this.bare() || this.emphasis())) {
        this.plain += this.text[this.place++];
      }
    }
    this.flush();
    return this.found;
  }

  flush() {
    if (this.plain) this.found.push(document.createTextNode(this.plain));
    this.plain = "";
  }

  take(node, end) {
    this.flush();
    this.found.push(node);
    this.place = end;
    return true;
  }

  closing(mark, from) {
    if (this.absent.has(mark)) return -1;
    const end = this.text.indexOf(mark, from);
    if (end < 0) this.absent.add(mark);
    return end;
  }

  escape() {
    const next = this.text[this.place + 1];
    if (this.text[this.place] !== "\\" || next === undefined || !PUNCTUATION.test(next)) return false;
    this.plain += next;
    this.place += 2;
    return true;
  }

  code() {
    if (this.text[this.place] !== "`") return false;
    let length = 1;
    while (this.text[this.place + length] === "`") length++;
    const mark = "`".repeat(length);
    const from = this.place + length;
    const end = this.closing(mark, from);
    if (end < 0) {
      this.plain += mark;
      this.place = from;
      return true;
    }
    const content = this.text.slice(from, end);
    return this.take(h("code", {}, content.trim() ? content.replace(/^ (.+) $/s, "$1") : content), end + length);
  }

  link() {
    const picture = this.text.startsWith("![", this.place);
    if (!picture && this.text[this.place] !== "[") return false;
    const from = this.place + (picture ? 2 : 1);
    const middle = this.closing("](", from);
    if (middle < 0) return false;
    const label = this.text.slice(from, middle);
    if (/[[\]\n]/.test(label)) return false;
    const end = this.closing(")", middle + 2);
    if (end < 0) return false;
    const address = this.text.slice(middle + 2, end).trim().split(/\s/)[0];
    if (!SAFE.test(address)) return false;
    return this.take(anchor(address, picture ? [label || "picture"] : inline(label, this.depth + 1)), end + 1);
  }

  bare() {
    if (this.text[this.place] !== "h" || WORD.test(this.text[this.place - 1] ?? "")) return false;
    BARE.lastIndex = this.place;
    const match = BARE.exec(this.text);
    if (match === null) return false;
    const address = match[0].replace(/[.,;:!?)\]*_]+$/, "");
    return this.take(anchor(address, [address]), this.place + address.length);
  }

  emphasis() {
    for (const [mark, tag] of MARKS) {
      if (!this.text.startsWith(mark, this.place)) continue;
      const from = this.place + mark.length;
      const before = this.text[this.place - 1] ?? " ";
      const opens = /\S/.test(this.text[from] ?? " ") && !(mark[0] === "_" && WORD.test(before));
      const end = opens ? this.end(mark, from + 1) : -1;
      if (end > 0) return this.take(h(tag, {}, ...inline(this.text.slice(from, end), this.depth + 1)), end + mark.length);
    }
    return false;
  }

  /** Where `mark` closes: behind something that is no space, and a single one not within a double one. */
  end(mark, from) {
    for (let tries = 0; tries < 20; tries++) {
      const end = this.closing(mark, from);
      if (end < 0) return -1;
      const after = this.text[end + mark.length] ?? " ";
      const double = mark.length === 1 && (after === mark || this.text[end - 1] === mark);
      if (/\S/.test(this.text[end - 1]) && !double && !(mark[0] === "_" && WORD.test(after))) return end;
      from = end + (double && after === mark ? 2 : 1);
    }
    return -1;
  }
}

function anchor(address, content) {
  return h("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...content);
}
