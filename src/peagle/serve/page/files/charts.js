// Small charts: lines over the last two minutes, and bars.

import { el, svg } from "./dom.js";

const POINTS = 120;
const WIDTH = 240;
const HEIGHT = 56;

class Chart {
  constructor(title) {
    this.said = el("output", {}, "–");
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
    this.left = el("span");
    this.right = el("span");
    this.title = title;
    this.element = el("figure", { class: "chart" },
      el("figcaption", {}, title, this.said),
      this.drawing,
      el("div", { class: "scale", "aria-hidden": "true" }, this.left, this.right));
  }

  say(text) {
    this.said.textContent = text;
    this.drawing.setAttribute("aria-label", `${this.title}: ${text}`);
  }
}

export class LineChart extends Chart {
  // `format` writes a value; the second line, if there is one, is dashed.
  constructor(title, format) {
    super(title);
    this.format = format;
    this.points = [];
  }

  // Add the newest values; null where there is none.
  add(values, said) {
    this.points.push(values);
    if (this.points.length > POINTS) this.points.shift();
    const top = Math.max(...this.points.flat().filter((value) => value !== null), 0) || 1;
    const lines = values.map((_, line) => {
      const places = this.points.flatMap((point, place) => {
        if (point[line] === null) return [];
        const x = WIDTH - (this.points.length - 1 - place) * (WIDTH / (POINTS - 1));
        return [`${x.toFixed(1)},${(HEIGHT - 2 - (point[line] / top) * (HEIGHT - 6)).toFixed(1)}`];
      });
      return svg("polyline", { points: places.join(" "), ...(line > 0 && { class: "second" }) });
    });
    this.drawing.replaceChildren(...lines);
    this.right.textContent = `top ${this.format(top)}`;
    this.say(said);
  }
}

export class BarChart extends Chart {
  // Draw shares between 0 and 1, the first at depth 1.
  draw(shares, said) {
    const width = WIDTH / Math.max(shares.length, 8);
    this.drawing.replaceChildren(
      ...shares.map((share, place) =>
        svg("rect", { x: place * width + 1.5, width: width - 3, y: HEIGHT - share * (HEIGHT - 4), height: share * (HEIGHT - 4) },
          svg("title", {}, `depth ${place + 1}: ${(100 * share).toFixed(0)} %`))),
    );
    this.left.textContent = shares.length ? "depth 1" : "";
    this.right.textContent = shares.length > 1 ? `${shares.length}` : "";
    this.say(said);
  }
}
