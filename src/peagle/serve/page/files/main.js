// Puts the page together.

import { ask } from "./api.js";
import { setUpChat } from "./chat.js";
import { setUpCompare } from "./compare.js";
import { byId } from "./dom.js";
import { askForKey, setUpKey } from "./key.js";
import { Live } from "./live.js";
import { tell } from "./problem.js";
import { setUpSteps } from "./steps.js";

const AGAIN_MS = 2000;

function state(text, bad = false) {
  const place = byId("state");
  if (place.textContent !== text) place.textContent = text;
  place.parentElement.classList.toggle("bad", bad);
}

function problemIn(problem, id) {
  if (problem.status === 401) refused();
  tell(id, problem.message);
}

function refused() {
  live.stop();
  state("key needed", true);
  askForKey({ refused: true });
}

const live = new Live((problem) => {
  if (problem === null) state("ready");
  else if (problem.status === 401) refused();
  else state(problem.message, true);
});

async function connect() {
  try {
    const [model] = (await (await ask("/v1/models")).json()).data;
    const { method = "the model's own" } = model.parallel_drafting_spec;
    byId("model").textContent = `${model.id} · ${model.precision} · drafts: ${method}`;
    document.title = `${model.id} · peagle`;
    state("ready");
    tell("chat-problem", null);
    live.start();
  } catch (problem) {
    if (problem.status === 401) {
      refused();
      return;
    }
    state(problem.message, true);
    setTimeout(connect, AGAIN_MS);
  }
}

function showView() {
  const compare = location.hash === "#compare";
  byId("chat").hidden = compare;
  byId("compare").hidden = !compare;
  byId("to-chat").ariaCurrent = compare ? null : "page";
  byId("to-compare").ariaCurrent = compare ? "page" : null;
}

setUpSteps();
setUpChat(problemIn);
setUpCompare(problemIn);
setUpKey(connect);
addEventListener("hashchange", showView);
showView();
connect();
