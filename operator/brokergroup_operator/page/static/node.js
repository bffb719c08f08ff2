// One node: may it be taken away now?

import { el } from "./dom.js";

export function nodeChildren(node) {
  return [
    el("div", { class: "head" },
      el("button", { type: "button", class: "back", "data-action": "back" }, "Back to the list"),
      el("h2", {}, node.node, " ", el("small", {}, "node"))),
    el("section", { class: `card verdict ${node.holds ? "yes" : "no"}`, "data-key": "verdict" },
      el("h3", {}, "Is it safe to take this node away now?"),
      el("p", {}, el("strong", {}, node.holds ? "✔ " : "✖ "), node.text)),
    el("section", { class: "card", "data-key": "groups" },
      el("h3", {}, "Group by group"),
      el("ul", { class: "plain" }, node.groups.map((one) => el("li", { "data-key": one.key },
        el("strong", {}, one.holds ? "✔ " : "✖ ", el("a", { href: `#/g/${one.key}` }, one.key)),
        ` (broker ${one.members.join(", ")}${one.master ? ", the master" : ""}): ${one.text}`))),
      node.more ? el("p", {}, `and ${node.more} more`) : null),
  ];
}
