// What two looks at the status say together: sums over the models, and what happened between the looks.

/** Tokens generated per second, from one status to the next; null where it cannot be told yet. */
export function tokensPerSecond(before, now) {
  if (!before || now.time <= before.time) return null;
  let tokens = 0;
  for (const [name, model] of Object.entries(now.models)) {
    const earlier = before.models[name]?.load;
    if (model.load && earlier) tokens += Math.max(0, model.load.generation_tokens - earlier.generation_tokens);
  }
  return tokens / (now.time - before.time);
}

/** The sum of a figure of all engines that tell it; null where none does. */
export function sum(status, name) {
  const loads = Object.values(status.models).map((model) => model.load).filter((load) => load !== null);
  return loads.length ? loads.reduce((total, load) => total + load[name], 0) : null;
}

/** How full the fullest KV cache is, 0 to 1; null where none tells. */
export function fullestCache(status) {
  const known = Object.values(status.models)
    .map((model) => model.load?.kv_cache_usage)
    .filter((usage) => usage !== null && usage !== undefined);
  return known.length ? Math.max(...known) : null;
}

/** What a model's state is in a word. */
export function state(model) {
  if (!model.live) return "dead";
  if (!model.progressing) return "stalled";
  return model.ready ? "ready" : "restarting";
}
