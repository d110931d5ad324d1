// A table with a caption; columns say what a cell of a row is.

import { h } from "./dom.js";

/**
 * `columns`: [heading, row → text or node, class]; the class "number" sets a column to the right. The first column is
 * the row's heading. Without rows, `empty` is said instead.
 */
export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("div", { class: "card" }, h("h3", {}, caption), h("p", { class: "empty" }, empty));
  const head = columns.map(([name, , kind]) => h("th", { scope: "col", class: kind }, name));
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      ...columns.map(([, cell, kind], place) =>
        h(place === 0 ? "th" : "td", { class: kind, scope: place === 0 ? "row" : null }, cell(row)),
      ),
    ),
  );
  return h(
    "div",
    { class: "card" },
    h("h3", {}, caption),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body)),
    ),
  );
}
