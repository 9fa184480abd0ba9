// The same prompt with and without speculation, and the proof that the answers are equal.

import { answer } from "./api.js";
import { byId, el, visible } from "./dom.js";
import { tell } from "./problem.js";
import { settings } from "./settings.js";
import { showSteps } from "./steps.js";
import { figures, rate, Written } from "./tokens.js";

let leaving = null;
let compared = [];

// Pair the tokens of two answers by their places; they are equal where the ids are.
function paired(some, others) {
  const length = Math.max(some.length, others.length);
  return Array.from({ length }, (_, place) => {
    const [one, other] = [some[place], others[place]];
    return { one, other, equal: one !== undefined && one.id === other?.id };
  });
}

function busy(is) {
  byId("run").disabled = is;
  byId("stop-both").disabled = !is;
}

function clear() {
  compared = [];
  for (const id of ["with-text", "without-text", "with-figures", "without-figures", "strip", "proof-rows", "verdict"]) {
    byId(id).replaceChildren();
  }
  byId("verdict").className = "verdict";
  byId("proof").hidden = true;
}

async function run(prompt) {
  const chosen = settings();
  // Without a seed of its own each answer would draw from another.
  if (chosen.temperature > 0 && chosen.seed === null) {
    chosen.seed = crypto.getRandomValues(new Uint32Array(1))[0];
    byId("seed").value = chosen.seed;
  }
  clear();
  leaving = new AbortController();
  const one = async (name, speculate) => {
    byId("verdict").textContent = speculate ? "Answering with speculation…" : "Answering without…";
    const written = new Written(byId(`${name}-text`));
    try {
      const got = await answer([{ role: "user", content: prompt }], chosen, {
        speculate,
        signal: leaving.signal,
        onStep: (details) => written.add(details),
      });
      byId(`${name}-figures`).textContent = figures(got);
      return { ...got, written };
    } finally {
      written.end();
    }
  };
  // In turn, so that neither slows the other.
  judge(await one("with", true), await one("without", false));
}

function judge(fast, plain) {
  showSteps(fast.written, null);
  compared = paired(fast.tokens, plain.tokens);
  const wrong = compared.findIndex((pair) => !pair.equal);
  const times = rate(fast) / rate(plain);
  const faster = Number.isFinite(times) ? ` With speculation: ${times.toFixed(2)} times the tokens a second.` : "";
  const verdict = byId("verdict");
  verdict.className = `verdict ${wrong < 0 ? "equal" : "different"}`;
  verdict.textContent = wrong < 0
    ? `Equal: all ${compared.length} token ids are the same, compared one by one.${faster}`
    : `Different from token ${wrong + 1} on. This must not happen; please report it.`;
  byId("strip").replaceChildren(...compared.map((pair) => el("i", pair.equal ? {} : { class: "different" })));
  byId("proof").hidden = false;
  list();
}

// The table has many rows, so it is made when it is opened.
function list() {
  if (!byId("proof").open) {
    byId("proof-rows").replaceChildren();
    return;
  }
  const cell = (token) => (token ? `${token.id} ${visible(token.text)}` : "–");
  byId("proof-rows").replaceChildren(...compared.map(({ one, other, equal }, place) =>
    el("tr", {},
      el("td", {}, `${place + 1}`), el("td", {}, cell(one)), el("td", {}, one?.origin ?? "–"),
      el("td", {}, cell(other)), el("td", {}, equal ? "✓" : "✗ different"))));
}

export function setUpCompare(onProblem) {
  byId("compare-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (byId("run").disabled) return;
    tell("compare-problem", null);
    busy(true);
    try {
      await run(byId("prompt").value.trim());
    } catch (problem) {
      byId("verdict").textContent = problem.name === "AbortError" ? "Stopped." : "";
      if (problem.name !== "AbortError") onProblem(problem, "compare-problem");
    } finally {
      busy(false);
    }
  });
  byId("stop-both").addEventListener("click", () => leaving?.abort());
  byId("proof").addEventListener("toggle", list);
}
