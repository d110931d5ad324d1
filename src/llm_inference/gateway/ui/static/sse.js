// Server-sent events from the body of a fetch: the data of each event, as text.

/** Yields the data of every event of `body` (a ReadableStream of bytes), wherever its pieces were cut. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const frames = (rest + value).split(/\r?\n\r?\n/);
      rest = frames.pop();
      for (const frame of frames) {
        const lines = frame.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever stopped reading has said why
  }
}
