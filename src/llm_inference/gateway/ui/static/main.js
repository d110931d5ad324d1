// The page's beginning: the API with its key, and the view that the address names.

import { Api } from "./api.js";
import { KeyDialog } from "./key.js";
import { Playground } from "./playground.js";
import { Status } from "./status.js";
import { Usage } from "./usage.js";

const VIEWS = { playground: Playground, status: Status, usage: Usage };
const DEFAULT = "playground";

const api = new Api(document.querySelector("meta[name=api-prefix]").content);
const dialog = new KeyDialog(api);
const views = new Map(
  Object.entries(VIEWS).map(([name, View]) => {
    const element = document.getElementById(`view-${name}`);
    return [name, { element, view: new View(element, api) }];
  }),
);
let open = null;

function show() {
  const wanted = location.hash.slice(1);
  const name = views.has(wanted) ? wanted : DEFAULT;
  open?.close();
  for (const [other, { element }] of views) element.hidden = other !== name;
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.body.dataset.view = name;
  open = views.get(name).view;
  open.open();
}

document.getElementById("key-button").addEventListener("click", () => dialog.show(false));
api.addEventListener("denied", () => dialog.show(true));
api.addEventListener("key", () => open.open());
window.addEventListener("hashchange", show);
show();
