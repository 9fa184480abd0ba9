// The tree panel: follows the answer being written, or stays at the step that was picked.

import { byId } from "./dom.js";
import { drawTree } from "./tree.js";

let shown = null;
let at = 0;
let following = true;
let due = false;

// Show a step of an answer; null follows its newest.
export function showSteps(written, step) {
  if (shown !== written) shown?.mark(null);
  shown = written;
  following = step === null;
  at = step ?? written.steps.length - 1;
  redraw();
}

// An answer has a step more; it is drawn if the answer is the one that is shown.
export function stepAdded(written) {
  if (shown === written) redraw();
}

function redraw() {
  // Steps come faster than frames.
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    draw();
  });
}

function draw() {
  const count = shown.steps.length;
  if (following) at = count - 1;
  const slider = byId("step");
  slider.max = Math.max(count, 1);
  slider.value = at + 1;
  slider.disabled = count < 2;
  slider.setAttribute("aria-valuetext", `step ${at + 1} of ${count}`);
  byId("step-before").disabled = at < 1;
  byId("step-after").disabled = at >= count - 1;
  const step = shown.steps[at];
  const before = shown.steps[at - 1]?.tokens.at(-1).text ?? "";
  byId("step-said").textContent = step ? `Step ${at + 1} of ${count}: ${told(step)}` : "Waiting for the first token.";
  byId("tree").replaceChildren(...(step?.tree ? [drawTree(step, before)] : []));
  shown.mark(following ? null : at);
}

function told({ tokens, tree }) {
  if (!tree) {
    return at === 0
      ? "the prompt was read, and the model wrote its first token."
      : "nothing was drafted; the model wrote one token.";
  }
  const drafted = `${tree.tokens.length} draft ${tree.tokens.length === 1 ? "token" : "tokens"} checked in one pass`;
  const kept = tree.accepted.length;
  const own = tokens.length - kept;
  return `${drafted}, ${kept} accepted${own ? ", 1 of the model's own" : ""}.`;
}

function move(to) {
  if (shown) showSteps(shown, Math.min(Math.max(to, 0), shown.steps.length - 1));
}

export function setUpSteps() {
  byId("step").addEventListener("input", (event) => move(event.target.valueAsNumber - 1));
  byId("step-before").addEventListener("click", () => move(at - 1));
  byId("step-after").addEventListener("click", () => move(at + 1));
}
