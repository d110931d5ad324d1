// The request as curl and Python, to be run by the test.

import { ask, open } from "./asking.mjs";

export default async function ({ page, url, question, system, settings = {} }) {
  await open(page, url);
  await page.getByLabel("System prompt").fill(system);
  await page.getByText("More parameters").click();
  for (const [label, value] of Object.entries(settings)) await page.getByLabel(label, { exact: true }).fill(value);
  const answer = await ask(page, question);
  await page.getByRole("button", { name: "Code", exact: true }).click();
  const [curl, python] = await page.locator("dialog pre").allInnerTexts();
  return { curl, python, answer: await answer.locator(".markdown").last().innerText() };
}
