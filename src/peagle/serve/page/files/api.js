// The server: everything but the page's own files carries the key, which lives in this tab only.

const KEY = "peagle-key";

export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const savedKey = () => sessionStorage.getItem(KEY) ?? "";

export function saveKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export async function ask(path, { body, signal } = {}) {
  const headers = {};
  const key = savedKey();
  // Headers hold no other characters; a key with one can only be wrong.
  if (key) headers.Authorization = `Bearer ${key.replace(/[^\x21-\x7e]/g, "?")}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      body: body && JSON.stringify(body),
      headers,
      signal,
      credentials: "omit",
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer. Is it still running?");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response) {
  const said = await response.json().catch(() => null);
  return new Problem(response.status, said?.error?.message ?? `The server said ${response.status}.`);
}

// Ask for a chat completion and call `onStep` with each step's tokens and tree as they come.
// Returns the tokens, their count, times in milliseconds, and what speculation did.
export async function answer(messages, settings, { speculate, signal, onStep }) {
  const spec = speculate ? { ...(settings.nodes && { max_tree_nodes: settings.nodes }) } : { method: "none" };
  // A default of the model may be wider than the tree that was asked for.
  if (spec.max_tree_nodes < 4) spec.num_parallel_trees = spec.max_tree_nodes;
  const began = performance.now();
  const response = await ask("/v1/chat/completions", {
    signal,
    body: {
      messages,
      stream: true,
      temperature: settings.temperature,
      max_tokens: settings.maxTokens,
      ...(settings.seed !== null && { seed: settings.seed }),
      parallel_drafting_spec: spec,
      return_speculation: true,
      speculation_details: true,
    },
  });
  const got = { text: "", tokens: [], first: null, last: null, speculation: null, finish: null };
  for await (const event of events(response.body)) {
    if (event.error) throw new Problem(response.status, event.error.message);
    got.speculation = event.speculation ?? got.speculation;
    const choice = event.choices[0];
    got.text += choice?.delta.content ?? "";
    got.finish = choice?.finish_reason ?? got.finish;
    const details = choice?.speculation_details;
    if (!details) continue;
    got.last = performance.now() - began;
    got.first ??= got.last;
    got.tokens.push(...details.tokens);
    onStep(details);
  }
  return got;
}

// The JSON objects of a stream of server-sent events.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Problem(0, "The answer broke off: the connection was closed.");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
