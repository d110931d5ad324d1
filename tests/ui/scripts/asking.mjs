// What people do in the playground, as functions that the scripts share.

/** Ask, and wait for all answers of the turn; the last answer's element. */
export async function ask(page, text, { wait = true } = {}) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
  if (wait) await page.getByRole("button", { name: "Send", exact: true }).waitFor();
  return page.locator(".answer").last();
}

export async function open(page, url) {
  await page.goto(url);
  await page.locator("#model-0 option").first().waitFor({ state: "attached" });
}
