// The conversation.

import { answer } from "./api.js";
import { byId, el } from "./dom.js";
import { tell } from "./problem.js";
import { settings } from "./settings.js";
import { figures, Written } from "./tokens.js";

let messages = [];
let leaving = null;

function turn(role, name) {
  const text = el("p", { class: "text" });
  const said = el("p", { class: "figures" });
  const element = el("article", { class: `turn ${role}` }, el("h3", {}, name), text, said);
  byId("conversation").append(element);
  return { element, text, said };
}

function busy(is) {
  byId("send").disabled = is;
  byId("stop").disabled = !is;
  byId("reset").disabled = is;
}

async function exchange(said, onProblem) {
  const chosen = settings();
  const asked = [...messages, { role: "user", content: said }];
  const question = turn("user", "You");
  question.text.textContent = said;
  const reply = turn("model", "Model");
  const inView = () => reply.element.getBoundingClientRect().bottom < innerHeight;
  const follow = () => reply.element.scrollIntoView({ block: "nearest" });
  follow();
  const written = new Written(reply.text);
  leaving = new AbortController();
  busy(true);
  try {
    const got = await answer(asked, chosen, {
      speculate: byId("speculate").checked,
      signal: leaving.signal,
      onStep: (details) => {
        // Whoever has scrolled away to read is left there.
        const watched = inView();
        written.add(details);
        if (watched) follow();
      },
    });
    reply.said.textContent = figures(got);
    messages = [...asked, { role: "assistant", content: got.text }];
    byId("message").value = "";
  } catch (problem) {
    if (problem.name === "AbortError") {
      reply.said.textContent = "Stopped; this exchange is forgotten.";
    } else {
      question.element.remove();
      reply.element.remove();
      onProblem(problem, "chat-problem");
    }
  } finally {
    written.end();
    busy(false);
  }
}

export function setUpChat(onProblem) {
  const form = byId("composer");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const said = byId("message").value.trim();
    if (!said || byId("send").disabled) return;
    tell("chat-problem", null);
    try {
      await exchange(said, onProblem);
    } catch (problem) {
      onProblem(problem, "chat-problem");
    }
  });
  byId("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  byId("stop").addEventListener("click", () => leaving?.abort());
  byId("reset").addEventListener("click", () => {
    messages = [];
    byId("conversation").replaceChildren();
    tell("chat-problem", null);
    byId("message").focus();
  });
}
