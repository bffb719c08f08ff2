// The page: what the stream tells becomes a list, worst first, and one opened group or node.

import { el, renew } from "./dom.js";
import { groupChildren } from "./group.js";
import { List } from "./list.js";
import { nodeChildren } from "./node.js";
import { Stream } from "./stream.js";
import { SEVERITIES, ago, clock, now } from "./words.js";

const FIELDS = ["severity", "text", "master", "epoch", "inSync", "alive", "wanted", "failingOverSince", "nodes", "masterNode"];
const byId = (id) => document.getElementById(id);
const groups = new Map();
const detail = byId("detail");
let showing = "groups";
let opened = { group: "", node: "" };
let document_ = null;
let picked = null;
let heardAt = null;
let oldestAt = null;

const lists = byId("list");
const list = new List(lists, { draw, open: (item) => { location.hash = item.href; } });

// ---- the list

function draw(item) {
  return item.kind === "node" ? drawNode(item) : drawGroup(item);
}

function drawGroup(item) {
  const severity = SEVERITIES[item.severity];
  const members = `${item.inSync}/${item.wanted} in sync`;
  return {
    classes: severity.name,
    children: [
      el("span", { class: "sign", "aria-hidden": "true" }, severity.sign),
      el("span", { class: "name" }, item.name, " ", el("small", {}, item.namespace)),
      el("span", { class: "facts" }, item.master ? master(item.master) : "no master", ` · epoch ${item.epoch} · ${members}`),
      el("span", { class: "text" }, el("b", {}, severity.word), `: ${item.text}`),
    ],
  };
}

function master(id) {
  return [el("span", { "aria-hidden": "true" }, "★ "), el("span", { class: "visually-hidden" }, "master "), String(id)];
}

function drawNode(item) {
  const text = `${item.count} ${item.count === 1 ? "group" : "groups"}, master of ${item.masters}`;
  return {
    classes: "node",
    children: [
      el("span", { class: "sign", "aria-hidden": "true" }, "▤"),
      el("span", { class: "name" }, item.name),
      el("span", { class: "facts" }, ""),
      el("span", { class: "text" }, text),
    ],
  };
}

function groupItems() {
  return [...groups.values()].sort((a, b) => a.severity - b.severity || (a.key < b.key ? -1 : 1));
}

function nodeItems() {
  const found = new Map();
  for (const group of groups.values()) {
    for (const name of group.nodes) {
      const node = found.get(name) ?? { kind: "node", key: `node:${name}`, name, count: 0, masters: 0, href: `#/n/${encodeURIComponent(name)}`, find: name };
      node.count += 1;
      node.masters += group.masterNode === name ? 1 : 0;
      found.set(name, node);
    }
  }
  return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

let listIsDue = false;
function listSoon() {
  if (listIsDue) return;
  listIsDue = true;
  requestAnimationFrame(() => {
    listIsDue = false;
    showList();
  });
}

function showList() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const all = showing === "groups" ? groupItems() : nodeItems();
  const items = words.length ? all.filter((item) => words.every((word) => item.find.includes(word))) : all;
  list.openedKey = opened.group || (opened.node && `node:${opened.node}`);
  list.show(items);
  const what = showing.slice(0, all.length === 1 ? -1 : undefined);
  const text = items.length === all.length ? `${all.length} ${what}` : `${items.length} of ${all.length} ${what}`;
  if (byId("count").textContent !== text) byId("count").textContent = text;
  summarize();
}

function summarize() {
  const counts = SEVERITIES.map(() => 0);
  for (const group of groups.values()) counts[group.severity] += 1;
  const parts = SEVERITIES.flatMap((severity, index) =>
    counts[index] ? [el("span", { class: `tally ${severity.name}` }, el("span", { "aria-hidden": "true" }, severity.sign), ` ${counts[index]} ${severity.word}`)] : []);
  renew(byId("summary"), parts.length ? parts : [document.createTextNode("No groups")]);
}

// ---- what the stream tells

const stream = new Stream({
  hello(told) {
    byId("told-by").textContent = `As seen by operator pod ${told.operator}; viewed by ${told.viewer}`;
  },
  rows(rows, isNew) {
    if (isNew) groups.clear();
    for (const [key, row] of Object.entries(rows)) takeRow(key, row);
    listSoon();
  },
  group(told) {
    document_ = told;
    showDetail();
  },
  node(told) {
    document_ = told;
    showDetail();
  },
  beat(told) {
    oldestAt = told.oldest;
  },
  link: showLink,
});

function takeRow(key, row) {
  const before = groups.get(key);
  if (row === null) {
    groups.delete(key);
    if (before) announce(`${before.name} is gone`);
    return;
  }
  const item = { kind: "group", key, href: `#/g/${key}` };
  FIELDS.forEach((name, index) => { item[name] = row[index]; });
  [item.namespace, item.name] = key.split("/");
  item.find = `${key} ${item.nodes.join(" ")} ${SEVERITIES[item.severity].word} ${item.text}`.toLowerCase();
  groups.set(key, item);
  if (before && before.severity !== item.severity && (before.severity === 0 || item.severity < 4)) {
    announce(`${item.name}: ${SEVERITIES[item.severity].word}. ${item.text}`);
  }
}

function announce(text) {
  byId("announcer").textContent = text;
}

function showLink(state) {
  const isLost = state === "lost";
  document.body.classList.toggle("lost", isLost);
  byId("login").hidden = state !== "login";
  byId("main").hidden = state === "login";
  if (state === "login") {
    byId("token").focus();
    byId("link").textContent = "A token is needed";
  }
  byId("lost").hidden = !isLost;
  tick();
}

function tick() {
  heardAt = stream?.heardAt ?? heardAt;
  const state = stream?.state;
  if (state === "lost") {
    byId("link").textContent = "Not connected";
    const text = heardAt === null ? "No answer yet. Trying again …"
      : `Connection lost: everything below is as it was at ${clock(heardAt)}, ${ago(heardAt)}. Trying again …`;
    if (byId("lost").textContent !== text) byId("lost").textContent = text;
  } else if (state === "open") {
    const age = oldestAt === null ? 0 : now() - oldestAt;
    const text = age > 15000 ? `Live; the oldest fact is of ${Math.round(age / 1000)} s ago` : "Live";
    if (byId("link").textContent !== text) byId("link").textContent = text;
  }
  for (const time of detail.querySelectorAll("time[data-at]")) {
    const text = ago(Number(time.dataset.at));
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(tick, 200);

// ---- what is opened

function showDetail() {
  if (opened.group && document_ === null) {
    renew(detail, [el("p", {}, `There is no group ${opened.group}, or it is not yours to see.`)]);
  } else if (opened.group && document_.key === opened.group) {
    renew(detail, groupChildren(document_, picked));
  } else if (opened.node && document_?.node === opened.node) {
    renew(detail, nodeChildren(document_));
  }
}

// A running failover moves between two events as well.
setInterval(() => {
  if (document_?.running && stream.state === "open") showDetail();
}, 100);

function route() {
  const [, kind, ...rest] = location.hash.split("/");
  const name = rest.map(decodeURIComponent).join("/");
  opened = { group: kind === "g" ? name : "", node: kind === "n" ? name : "" };
  document_ = undefined;
  picked = null;
  document.body.classList.toggle("opened", Boolean(name));
  detail.setAttribute("aria-label", name ? `Opened: ${name}` : "Opened group");
  document.title = name ? `${name} – Broker groups` : "Broker groups";
  renew(detail, [el("p", { class: "quiet" }, name ? `Opening ${name} …` : "Choose a group: arrow keys, then Enter.")]);
  if (name) detail.focus({ preventScroll: true });
  stream.open(opened);
  listSoon();
}

function show(what) {
  showing = what;
  byId("show-groups").setAttribute("aria-pressed", String(what === "groups"));
  byId("show-nodes").setAttribute("aria-pressed", String(what === "nodes"));
  lists.setAttribute("aria-label", what === "groups" ? "Broker groups, worst first" : "Nodes");
  lists.scrollTop = 0;
  showList();
}

function back() {
  const was = opened.group || (opened.node && `node:${opened.node}`);
  location.hash = "";
  if (was) list.chosen = was;
  lists.focus();
}

detail.addEventListener("click", (event) => {
  const action = event.target.closest("[data-action]");
  if (action?.dataset.action === "back") back();
  if (action?.dataset.action === "incident") {
    picked = picked === action.dataset.id ? null : action.dataset.id;
    showDetail();
  }
});
byId("filter").addEventListener("input", listSoon);
byId("show-groups").addEventListener("click", () => show("groups"));
byId("show-nodes").addEventListener("click", () => show("nodes"));
byId("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await fetch("/api/session", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token: byId("token").value }),
  });
  byId("token").value = "";
  byId("login-error").textContent = answer.ok ? "" : await answer.text();
  if (answer.ok) stream.connect();
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input, textarea");
  if (event.key === "Escape") {
    if (isTyping) byId("filter").value = "";
    back();
    listSoon();
  } else if (!isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const does = { "/": () => byId("filter").focus(), g: () => show("groups"), n: () => show("nodes") }[event.key];
    if (does) {
      event.preventDefault();
      does();
    }
  }
});
addEventListener("hashchange", route);

route();
lists.focus();
