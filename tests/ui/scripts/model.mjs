// The default model: a real answer with real probabilities.

import { ask, open } from "./asking.mjs";

export default async function ({ page, url, question, picture }) {
  await open(page, url);
  await page.getByLabel("Temperature").fill("0");
  const first = await ask(page, question);
  const text = await first.locator(".markdown").last().innerText();
  const figures = await first.locator(".figures").innerText();
  await page.getByLabel("Token probabilities").check();
  const answer = await ask(page, "And of Italy?");
  const likely = answer.locator(".token").nth(2);
  await likely.hover();
  const note = await answer.locator(".token-note").innerText();
  if (picture) await page.screenshot({ path: picture });
  return { text, figures, note, tokens: await answer.locator(".token").count() };
}
