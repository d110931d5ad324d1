// What the page makes of an answer: elements where markdown is, text where HTML is, and never a script.

import assert from "node:assert/strict";
import { ask, open } from "./asking.mjs";

export default async function ({ page, context, url }) {
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: url });
  await open(page, url);
  const answer = await ask(page, "go");
  const found = await answer.locator(".markdown").last().evaluate((root) => ({
    tags: [...new Set([...root.querySelectorAll("*")].map((one) => one.tagName.toLowerCase()))].sort(),
    links: [...root.querySelectorAll("a")].map((one) => [one.textContent, one.getAttribute("href"), one.rel]),
    inline: [...root.querySelectorAll("p:first-of-type > *")].map((one) => [one.tagName, one.textContent]),
    items: [...root.querySelectorAll("li")].map((one) => one.firstChild.textContent),
    cells: [...root.querySelectorAll("td")].map((one) => [one.textContent, one.className]),
    code: [...root.querySelectorAll("pre")].map((one) => one.textContent),
    languages: [...root.querySelectorAll("figcaption span")].map((one) => one.textContent),
    text: root.innerText,
    own: window.pwned ?? null,
  }));
  assert.equal(found.own, null);
  await answer.getByRole("button", { name: "Copy code" }).first().click();
  await page.locator("#announcer", { hasText: "Copied" }).waitFor();
  return { ...found, copied: await page.evaluate(() => navigator.clipboard.readText()) };
}
