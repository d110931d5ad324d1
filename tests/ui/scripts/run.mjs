// node run.mjs SCRIPT URL OPTIONS: one script in a fresh Chromium. Whatever the page complains about is a failure.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const [, , name, url, options] = process.argv;
const tools = createRequire(path.join(process.env.LLM_UI_TOOLS, "package.json"));
const { chromium } = tools("playwright-core");
const { default: script } = await import(`./${name}.mjs`);

// No sandbox: it needs rights that root in a container does not have; the pages are our own.
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
try {
  const given = JSON.parse(options);
  const context = await browser.newContext({
    viewport: given.viewport ?? { width: 1280, height: 800 },
    colorScheme: given.scheme ?? "light",
    deviceScaleFactor: given.scale ?? 1,
    isMobile: given.mobile ?? false,
    hasTouch: given.mobile ?? false,
  });
  const page = await context.newPage();
  page.setDefaultTimeout(given.timeout ?? 20_000);
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(`error: ${error.message}`));
  page.on("console", (message) => {
    // Every refused request is told there too; what the page makes of it is the script's to see.
    if (message.type() === "error" && !message.text().includes("Failed to load resource")) complaints.push(message.text());
  });
  const strangers = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(url)) strangers.push(request.url());
  });
  const result = await script({ page, context, url, ...given });
  assert.deepEqual(complaints, [], "the page complained");
  assert.deepEqual(strangers, [], "the page asked somebody else");
  console.log(JSON.stringify(result ?? null));
} catch (error) {
  console.error(error.stack);
  process.exitCode = 1;
} finally {
  await browser.close();
}
