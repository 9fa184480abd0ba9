// A place on the page that says what went wrong.

import { byId } from "./dom.js";

export function tell(id, message) {
  const place = byId(id);
  place.hidden = !message;
  place.textContent = message ?? "";
}
