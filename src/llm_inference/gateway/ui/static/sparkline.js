// The last values of a number as a small line, with its largest value written beside it.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240;
const HEIGHT = 48;

export class Sparkline {
  /** `text(value)` writes a value; `points` are shown at most. */
  constructor(label, text, points = 90) {
    this.label = label;
    this.text = text;
    this.points = points;
    this.values = [];
    this.line = document.createElementNS(SVG, "polyline");
    this.line.setAttribute("points", "");
    this.element = document.createElementNS(SVG, "svg");
    this.element.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("role", "img");
    this.element.setAttribute("class", "sparkline");
    this.element.append(this.line);
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > this.points) this.values.shift();
    const top = Math.max(...this.values, 1e-9);
    const step = WIDTH / (this.points - 1);
    const left = WIDTH - step * (this.values.length - 1);
    const points = this.values.map((one, place) => `${(left + step * place).toFixed(1)},${(HEIGHT - 2 - (HEIGHT - 4) * (one / top)).toFixed(1)}`);
    this.line.setAttribute("points", points.join(" "));
    this.element.setAttribute("aria-label", `${this.label}: now ${this.text(value)}, at most ${this.text(top)}`);
  }
}
