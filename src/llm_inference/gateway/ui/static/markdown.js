// Markdown as models write it, as elements: paragraphs, headings, lists, quotes, tables, code with a copy button.

import { copyButton } from "./clipboard.js";
import { h } from "./dom.js";
import { inline } from "./inline.js";

const MAX_DEPTH = 6;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])[ \t]+(?=\S)/;
const DELIMITER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/** What `container` shows, block by block, so that a stream only changes what is new. */
const shown = new WeakMap();

/** Make `container` show `text`. Called again with a longer text it keeps every block that is still the same. */
export function render(container, text) {
  const before = shown.get(container) ?? [];
  const blocks = parse(text);
  blocks.forEach((block, place) => {
    if (before[place] === block.source) return;
    const element = block.make();
    if (place < container.children.length) container.replaceChild(element, container.children[place]);
    else container.append(element);
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
  shown.set(container, blocks.map((block) => block.source));
}

/** The blocks of `text`: where each came from, and how its element is made. */
function parse(text, depth = 0) {
  const lines = text.split("\n");
  const blocks = [];
  let place = 0;
  const take = (end, make) => {
    blocks.push({ source: lines.slice(place, end).join("\n"), make });
    place = end;
  };
  while (place < lines.length) {
    const line = lines[place];
    if (!line.trim()) place++;
    else if (FENCE.test(line)) fence(lines, place, take);
    else if (HEADING.test(line)) heading(line, place, take);
    else if (RULE.test(line)) take(place + 1, () => h("hr"));
    else if (QUOTE.test(line) && depth < MAX_DEPTH) quote(lines, place, take, depth);
    else if (ITEM.test(line) && depth < MAX_DEPTH) list(lines, place, take, depth);
    else if (line.includes("|") && DELIMITER.test(lines[place + 1] ?? "")) table(lines, place, take);
    else paragraph(lines, place, take);
  }
  return blocks;
}

function elements(text, depth) {
  return parse(text, depth).map((block) => block.make());
}

function fence(lines, place, take) {
  const [, mark, language] = FENCE.exec(lines[place]);
  let end = place + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(mark) && !lines[end].trim().replaceAll(mark[0], ""))) end++;
  const code = lines.slice(place + 1, end).join("\n");
  take(Math.min(end + 1, lines.length), () =>
    h(
      "figure",
      { class: "code" },
      h("figcaption", {}, h("span", {}, language || "text"), copyButton(() => code, "Copy", { "aria-label": "Copy code" })),
      h("pre", { tabindex: "0" }, h("code", {}, code)),
    ),
  );
}

function heading(line, place, take) {
  const [, marks, text] = HEADING.exec(line);
  // The page's own headings come first: an answer's begin below them.
  take(place + 1, () => h(`h${Math.min(6, marks.length + 2)}`, {}, ...inline(text.replace(/[ \t]+#+[ \t]*$/, ""))));
}

function quote(lines, place, take, depth) {
  let end = place;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  const inner = lines.slice(place, end).map((line) => line.replace(QUOTE, "")).join("\n");
  take(end, () => h("blockquote", {}, ...elements(inner, depth + 1)));
}

function list(lines, place, take, depth) {
  const ordered = /\d/.test(ITEM.exec(lines[place])[2]);
  const items = [];
  let end = place;
  let width = 0;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const item = ITEM.exec(line);
    const indent = line.length - line.trimStart().length;
    if (items.length && line.trim() && indent >= Math.min(width, 2) && indent > 0) {
      items.at(-1).push(line.slice(Math.min(indent, width)));
    } else if (item && /\d/.test(item[2]) === ordered && !RULE.test(line)) {
      width = item[0].length;
      items.push([line.slice(width)]);
    } else if (!line.trim() && belongs(lines, end, width, ordered)) items.at(-1).push("");
    else if (line.trim() && !startsBlock(line) && lines[end - 1]?.trim()) items.at(-1).push(line);
    else break;
  }
  const first = Number.parseInt(ITEM.exec(lines[place])[2], 10);
  take(end, () =>
    h(
      ordered ? "ol" : "ul",
      { start: ordered && first !== 1 ? first : null },
      ...items.map((item) => h("li", {}, ...tight(item.join("\n"), depth + 1))),
    ),
  );
}

/** Whether a list goes on after the blank line at `place`. */
function belongs(lines, place, width, ordered) {
  const next = lines.slice(place).find((line) => line.trim());
  if (next === undefined) return false;
  const item = ITEM.exec(next);
  return (item !== null && /\d/.test(item[2]) === ordered) || next.length - next.trimStart().length >= Math.min(width, 2);
}

/** An item that is one paragraph shows it without the paragraph's margins. */
function tight(text, depth) {
  const made = elements(text, depth);
  return made.flatMap((element, place) => (place === 0 && element.tagName === "P" ? [...element.childNodes] : [element]));
}

function table(lines, place, take) {
  let end = place + 2;
  while (end < lines.length && lines[end].includes("|")) end++;
  const rows = lines.slice(place, end).map(cells);
  const [head, delimiter, ...body] = rows;
  const side = delimiter.map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : null));
  const row = (tag, cells) =>
    h("tr", {}, ...head.map((_, column) => h(tag, { class: side[column] }, ...inline(cells[column] ?? ""))));
  take(end, () =>
    h(
      "div",
      { class: "scroll" },
      h("table", {}, h("thead", {}, row("th", head)), h("tbody", {}, ...body.map((cells) => row("td", cells)))),
    ),
  );
}

function cells(line) {
  const bare = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return bare.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function paragraph(lines, place, take) {
  let end = place + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines[end])) end++;
  const text = lines.slice(place, end).join("\n");
  take(end, () => h("p", {}, ...inline(text)));
}

function startsBlock(line) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}
