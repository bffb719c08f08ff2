// The demo's own part of the page: what its client sees, and the buttons.

import { el, renew } from "/static/dom.js";
import { milliseconds } from "/static/words.js";

const POLL_MILLISECONDS = 500;
const panel = el("section", { id: "demo", "aria-label": "Demo" });
document.querySelector("header").after(panel);
let token = "";
let told = "";

async function poll() {
  try {
    const state = await (await fetch("/demo/state")).json();
    token = state.token;
    show(state);
    if (state.group && !location.hash) location.hash = `#/g/${state.group}`;
  } catch {
    renew(panel, [el("p", {}, "The demo has ended.")]);
    return;
  }
  setTimeout(poll, POLL_MILLISECONDS);
}

function show(state) {
  const first = Object.entries(state.firstAcknowledged ?? {}).slice(-3).map(([id, ms]) => `${milliseconds(ms)} (epoch ${id.split("/").pop()})`);
  renew(panel, [
    el("p", {}, el("strong", {}, "Demo: "), state.doing || "…"),
    state.acknowledged === undefined ? null : el("p", { class: "quiet" },
      `Its client: ${state.acknowledged} writes acknowledged, ${state.perSecond.toFixed(0)} a second, ${state.failed} refused or unknown`,
      first.length ? ` · from the detected loss to a client's first acknowledged write (firstAck): ${first.join(", ")}` : ""),
    el("div", { class: "buttons" }, (state.strikes ?? []).map((strike) =>
      el("button", { type: "button", "data-strike": strike.name, disabled: Boolean(strike.whyNot), title: strike.whyNot || null }, strike.label))),
    el("p", { role: "status", class: "quiet" }, told),
  ]);
}

panel.addEventListener("click", async (event) => {
  const strike = event.target.closest("[data-strike]")?.dataset.strike;
  if (!strike) return;
  const answer = await fetch("/demo/strike", { method: "POST", headers: { "X-Demo-Token": token }, body: JSON.stringify({ strike }) });
  told = answer.ok ? `${event.target.textContent}: done at ${new Date().toLocaleTimeString([], { hour12: false })}` : `Not done: ${(await answer.text()).trim()}`;
});
poll();
