// An answer as it is written: one span a token, coloured by where it came from.

import { el } from "./dom.js";
import { showSteps, stepAdded } from "./steps.js";

const ABOUT = {
  network: "drafted by the network",
  lookup: "drafted from this request's text",
  corpus: "drafted from the corpus",
  target: "the model's own",
};

export class Written {
  // `place` is the element that the tokens go to.
  constructor(place) {
    this.place = place;
    this.steps = [];
    place.replaceChildren();
    place.setAttribute("aria-busy", "true");
    place.onclick = (event) => {
      const step = event.target.dataset.step;
      if (step !== undefined) showSteps(this, Number(step));
    };
    showSteps(this, null);
  }

  add(details) {
    const step = this.steps.push(details) - 1;
    this.place.append(
      ...details.tokens.map((token) =>
        el(
          "span",
          { class: `token ${token.origin}`, "data-step": step, title: `${ABOUT[token.origin]}, step ${step + 1}` },
          token.text,
        ),
      ),
    );
    stepAdded(this);
  }

  end() {
    this.place.removeAttribute("aria-busy");
  }

  mark(step) {
    for (const token of this.place.children) {
      token.classList.toggle("shown", Number(token.dataset.step) === step);
    }
  }
}

// The figures below an answer.
export function figures(got) {
  const count = got.tokens.length;
  const seconds = (got.last - got.first) / 1000;
  const passes = got.speculation?.target_passes;
  return [
    `${count} ${count === 1 ? "token" : "tokens"}`,
    passes && `${passes} passes of the model`,
    passes && `${((count - 1) / passes).toFixed(2)} tokens a pass`,
    seconds > 0 && `${rate(got).toFixed(0)} tokens/s`,
    got.first !== null && `first after ${got.first.toFixed(0)} ms`,
    got.finish === "length" && "cut off at the longest answer",
  ].filter(Boolean).join(" · ");
}

export const rate = (got) => ((got.tokens.length - 1) * 1000) / (got.last - got.first);
