// What the person chose, as the API takes it.

import { byId } from "./dom.js";
import { Problem } from "./api.js";

function number(id, name) {
  const input = byId(id);
  if (!input.checkValidity()) throw new Problem(400, `${name}: ${input.validationMessage}`);
  return input.value === "" ? null : input.valueAsNumber;
}

export const settings = () => ({
  temperature: number("temperature", "Temperature") ?? 0,
  seed: number("seed", "Seed"),
  maxTokens: number("max-tokens", "Longest answer") ?? 200,
  nodes: number("nodes", "Nodes in a tree"),
});
