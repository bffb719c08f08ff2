// One opened group: its members, is it safe, the failover as it happens, the past beside the median.

import { el } from "./dom.js";
import { LATE_STEPS, SEVERITIES, STEPS, ago, bytes, clock, list, milliseconds, now, when } from "./words.js";

const BAR_UNITS = 1000;

/** The children of the detail section. `picked` is the id of the incident that was chosen to be shown, or null. */
export function groupChildren(group, picked) {
  const severity = SEVERITIES[group.severity];
  return [
    el("div", { class: "head" },
      el("button", { type: "button", class: "back", "data-action": "back" }, "Back to the list"),
      el("h2", {}, group.key.split("/")[1], " ", el("small", {}, `namespace ${group.key.split("/")[0]}`)),
      el("p", { class: `state ${severity.name}` }, el("span", { class: "sign", "aria-hidden": "true" }, severity.sign), " ",
        el("strong", {}, severity.word), ": ", group.text),
      el("p", { class: "quiet" }, "Seen ", time(group.seenAt), group.durability ? ` · ${group.durability}` : "",
        group.minimumInSync ? ` · ${group.minimumInSync} of ${group.wanted} must acknowledge` : "")),
    safety(group),
    incident(group, picked),
    members(group),
    whatIf(group),
    past(group, picked),
    setHistory(group),
    conditions(group),
  ];
}

function time(at) {
  return at === null ? "never" : el("time", { "data-at": at }, ago(at));
}

function safety(group) {
  if (!group.safe) return el("section", { class: "card", "data-key": "safe" }, el("h3", {}, "May the master be lost now?"), el("p", {}, "Not known yet"));
  return el("section", { class: `card verdict ${group.safe.holds ? "yes" : "no"}`, "data-key": "safe" },
    el("h3", {}, "May the master be lost now?"),
    el("p", {}, el("strong", {}, group.safe.holds ? "✔ Yes" : "✖ No"), `: ${group.safe.text} `, el("code", {}, group.safe.reason)));
}

function members(group) {
  const ends = group.members.flatMap((one) => [one.logEnd, one.confirmOffset]).filter((value) => value !== null && value >= 0);
  const top = Math.max(1, ...ends);
  const bottom = Math.min(top, ...ends);
  // The log is long and the differences are small: the bars begin a little below the lowest end.
  const base = Math.max(0, bottom - Math.max(1024, (top - bottom) * 0.5));
  return el("section", { class: "card", "data-key": "members" },
    el("h3", {}, "Members"),
    el("p", { class: "quiet" }, `SyncStateSet {${group.syncStateSet.join(", ")}}, epoch ${group.syncStateSetEpoch} · master epoch ${group.epoch}`),
    el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Members, may be scrolled" },
      el("table", {},
        el("thead", {}, el("tr", {}, ["Broker", "Role", "In sync", "Epoch", "Log end, confirmed", "Behind", "Heard", "Where"].map((text) => el("th", { scope: "col" }, text)))),
        el("tbody", {}, group.members.map((one) => member(one, base, top))))));
}

function member(one, base, top) {
  const inSync = one.inSync ? "✔ yes" : "– no";
  const notes = [one.fact, one.lacks > 0 && `lacks ${one.lacks} of the master's metadata`, one.state !== "InSync" && one.state].filter(Boolean);
  return el("tr", { class: `${one.role} ${one.alive ? "" : "away"}`, "data-key": one.id },
    el("th", { scope: "row" }, one.id),
    el("td", {}, el("span", { class: "number" }, one.role === "master" ? "★ master" : "slave"), notes.length ? el("small", {}, ` ${notes.join(", ")}`) : null),
    el("td", { class: "number" }, inSync),
    el("td", {}, one.epoch >= 0 ? one.epoch : "–"),
    el("td", {}, bars(one, base, top)),
    el("td", { class: "number" }, one.role === "master" ? "–" : one.lag === null ? "unknown" : bytes(one.lag)),
    el("td", { class: "number" }, time(one.heardAt)),
    el("td", {}, [one.pod, one.node, one.zone].filter(Boolean).join(" · ") || one.address || "unknown"));
}

function bars(one, base, top) {
  const width = (value) => (value === null || value < 0 ? 0 : Math.max(4, ((value - base) / Math.max(1, top - base)) * BAR_UNITS));
  const confirmed = one.confirmOffset === null ? "unknown" : one.confirmOffset;
  return el("div", { class: "bars" },
    el("svg", { viewBox: `0 0 ${BAR_UNITS} 20`, preserveAspectRatio: "none", role: "img", "aria-label": `log end ${one.logEnd}, confirmed ${confirmed}` },
      el("rect", { class: "end", x: 0, y: 0, width: width(one.logEnd), height: 12 }),
      el("rect", { class: "confirmed", x: 0, y: 12, width: width(one.confirmOffset), height: 8 })),
    el("small", {}, `${bytes(one.logEnd)}, ${one.confirmOffset === null ? "unknown" : bytes(one.confirmOffset)}`));
}

function incident(group, picked) {
  const shown = group.incidents.find((one) => one.id === picked) ?? group.running ?? group.incidents[0];
  if (!shown) return el("section", { class: "card", "data-key": "incident" }, el("h3", {}, "The last change of master"), el("p", {}, "None since this operator pod began"));
  const isRunning = shown === group.running;
  const median = group.medians[shown.kind];
  const title = isRunning ? (shown.kind === "failover" ? "Failing over now" : "Switching over now") : `${shown.kind === "failover" ? "Failover" : "Switchover"} to epoch ${shown.epoch ?? "none"}`;
  return el("section", { class: `card incident ${isRunning ? "running" : ""}`, "data-key": "incident" },
    el("h3", {}, title),
    el("p", {}, `Broker ${shown.from ?? "none"} → ${shown.to ?? "…"} · ${shown.trigger}${shown.cause ? `, cause ${shown.cause}` : ""} · `,
      isRunning ? el("span", {}, "since ", el("time", { "data-at": shown.startedAt }, ago(shown.startedAt))) : `${shown.outcome} · ${when(shown.startedAt)}`,
      shown.unfenced ? " · UNFENCED" : "", shown.unclean ? " · UNCLEAN" : ""),
    waterfall(shown, median, isRunning),
    shown.evidence.length ? el("details", {}, el("summary", {}, "Why it was believed"), el("ul", {}, shown.evidence.map((text) => el("li", {}, text)))) : null,
    el("p", { class: "quiet" }, "Incident ", el("code", {}, shown.id)));
}

function waterfall(shown, median, isRunning) {
  const elapsed = isRunning ? now() - shown.startedAt : 0;
  const longest = Math.max(1, elapsed, ...Object.values(shown.steps), ...Object.values(median.steps));
  const scale = (value) => (value / longest) * BAR_UNITS;
  let before = 0;
  const late = [...LATE_STEPS].sort((one, other) => (shown.steps[one] ?? Number.MAX_VALUE) - (shown.steps[other] ?? Number.MAX_VALUE));
  const names = [...Object.keys(STEPS).filter((name) => !LATE_STEPS.includes(name)), ...late].filter((name) => name in shown.steps || isRunning || name in median.steps);
  const next = names.find((name) => !(name in shown.steps));
  const rows = names.map((name) => {
    const reached = shown.steps[name];
    const from = before;
    const to = reached ?? (isRunning && name === next ? elapsed : null);
    if (reached !== undefined) before = reached;
    const usual = median.steps[name];
    return el("tr", { "data-key": name, class: reached === undefined ? "open" : "" },
      el("th", { scope: "row" }, name, el("small", {}, ` ${STEPS[name]}`)),
      el("td", { class: "number" }, reached !== undefined ? milliseconds(reached) : isRunning && name === next ? "…" : "–"),
      el("td", { class: "bar" }, el("svg", { viewBox: `0 0 ${BAR_UNITS} 16`, preserveAspectRatio: "none", "aria-hidden": "true" },
        to === null ? null : el("rect", { class: "step", x: scale(from), y: 2, width: Math.max(4, scale(to - from)), height: 12 }),
        usual === undefined ? null : el("rect", { class: "usual", x: Math.min(BAR_UNITS - 4, scale(usual)), y: 0, width: 4, height: 16 }))),
      el("td", { class: "number" }, usual === undefined ? "–" : milliseconds(usual)));
  });
  return el("table", { class: "waterfall" },
    el("caption", { class: "visually-hidden" }, "Steps of the change of master, in milliseconds since it was detected"),
    el("thead", {}, el("tr", {}, ["Step", "Reached", "", `Median of ${median.count}`].map((text, index) => index === 2 ? el("td", {}) : el("th", { scope: "col" }, text)))),
    el("tbody", {}, rows));
}

function whatIf(group) {
  return el("section", { class: "card", "data-key": "what-if" },
    el("h3", {}, "What if a member were lost now?"),
    el("ul", { class: "plain" }, group.members.map((one) =>
      el("li", { "data-key": one.id }, one.ifLost
        ? [el("strong", {}, `${one.ifLost.holds ? "✔" : "✖"} Broker ${one.id}${one.role === "master" ? ", the master" : ""}`), `: ${one.ifLost.text}`,
          one.node ? [" ", el("a", { href: `#/n/${encodeURIComponent(one.node)}` }, `node ${one.node}`)] : null]
        : `Broker ${one.id}: not known yet`))));
}

function past(group, picked) {
  const rows = group.incidents.map((one) => {
    const took = one.durationMilliseconds;
    const usual = group.medians[one.kind].steps.roleChanged;
    const ratio = took && usual ? ` (${(took / usual).toFixed(1)} × median)` : "";
    return el("tr", { "data-key": one.id },
      el("td", {}, when(one.startedAt)),
      el("th", { scope: "row" }, el("button", { type: "button", "data-action": "incident", "data-id": one.id, "aria-pressed": String(one.id === picked) }, `${one.kind}, epoch ${one.epoch ?? "–"}`)),
      el("td", {}, `${one.from ?? "none"} → ${one.to ?? "none"}`),
      el("td", {}, one.cause && one.cause !== "unknown" ? `${one.trigger}, ${one.cause}` : one.trigger),
      el("td", { class: "number" }, milliseconds(took), ratio));
  });
  return el("section", { class: "card", "data-key": "past" },
    el("h3", {}, "Past changes of master"),
    rows.length ? el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Past changes, may be scrolled" },
      el("table", {}, el("thead", {}, el("tr", {}, ["When", "What", "From, to", "Why", "Took"].map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, rows)))
      : el("p", {}, "None is known"));
}

function setHistory(group) {
  const rows = group.history.map((one, index) => {
    const older = group.history[index + 1];
    const joined = older ? one.syncStateSet.filter((id) => !older.syncStateSet.includes(id)) : [];
    const left = older ? older.syncStateSet.filter((id) => !one.syncStateSet.includes(id)) : [];
    const change = [joined.length && `joined: ${list(joined)}`, left.length && `left: ${list(left)}`].filter(Boolean).join("; ");
    return el("tr", { "data-key": `${one.epoch}/${one.syncStateSetEpoch}/${one.master}` },
      el("td", {}, clock(one.at)), el("td", {}, `{${one.syncStateSet.join(", ")}}`), el("td", {}, one.syncStateSetEpoch),
      el("td", {}, one.master ?? "none"), el("td", {}, one.epoch), el("td", {}, change || (older ? "" : "as this pod first saw it"), one.why ? el("small", {}, ` ${one.why}`) : null));
  });
  return el("section", { class: "card", "data-key": "sets" },
    el("h3", {}, "History of the SyncStateSet"),
    rows.length ? el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "History, may be scrolled" },
      el("table", {}, el("thead", {}, el("tr", {}, ["At", "Set", "Its epoch", "Master", "Epoch", "Change"].map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, rows)))
      : el("p", {}, "None is known"));
}

function conditions(group) {
  return el("section", { class: "card", "data-key": "conditions" },
    el("h3", {}, "Conditions"),
    el("p", { class: "quiet" }, "As the reconciling operator pod wrote them into the status."),
    el("dl", {}, group.conditions.flatMap((one) => [
      el("dt", { "data-key": `${one.type}-t` }, `${one.type}: ${one.status}`),
      el("dd", { "data-key": `${one.type}-d` }, el("code", {}, one.reason), " ", one.message, " ", el("small", {}, "since ", time(Date.parse(one.lastTransitionTime))))])));
}
