// Numbers as people read them. "–" stands for what is not known.

const UNKNOWN = "–";
const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return known(value) ? GROUPED.format(value) : UNKNOWN;
}

/** One decimal below a hundred. */
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  return value < 100 ? value.toFixed(1) : GROUPED.format(value);
}

export function percent(share) {
  if (!known(share)) return UNKNOWN;
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/** A duration in seconds. */
export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 0.01) return `${(1000 * value).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  return value < 100 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : span(value);
}

/** A long time, in its two largest units. */
export function span(value) {
  if (!known(value)) return UNKNOWN;
  const whole = Math.round(value);
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([number]) => number > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([number]) => number > 0)
    .map(([number, unit]) => `${number} ${unit}`)
    .join(" ");
}

/** Of a moment in Unix seconds: the time alone where it is today. */
export function moment(unix) {
  const date = new Date(1000 * unix);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

/** Bytes, in GiB or MiB. */
export function size(bytes) {
  if (!known(bytes)) return UNKNOWN;
  return bytes < 2 ** 30 ? `${Math.round(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

export function price(value) {
  return known(value) ? value.toFixed(value !== 0 && value < 0.01 ? 6 : 2) : UNKNOWN;
}
