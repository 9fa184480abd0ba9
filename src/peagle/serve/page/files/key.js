// The dialog that asks for the API key.

import { saveKey, savedKey } from "./api.js";
import { byId } from "./dom.js";

const NEEDED = "This server asks for an API key.";
const REFUSED = "The server refused this key. Check it and try again.";

// Ask for a key, saying what was wrong with the one before.
export function askForKey({ refused }) {
  byId("key-said").textContent = refused ? (savedKey() ? REFUSED : NEEDED) : "The key that is sent with every request.";
  const dialog = byId("key-dialog");
  if (!dialog.open) dialog.showModal();
  byId("key").select();
}

export function setUpKey(onKey) {
  const dialog = byId("key-dialog");
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    saveKey(byId("key").value.trim());
    dialog.close();
    onKey();
  });
  byId("key-cancel").addEventListener("click", () => dialog.close());
  byId("change-key").addEventListener("click", () => askForKey({ refused: false }));
}
