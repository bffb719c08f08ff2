// A listbox of any length: only the options in sight are elements. Worst first; the choice stays with its item when others move.

import { el, renew } from "./dom.js";

const ROW_PIXELS = 56;
const BEYOND = 6;

export class List {
  /** `draw(item)` gives {classes, children}; `open(item)` is called for Enter and a click. */
  constructor(box, { draw, open, chosen }) {
    this.box = box;
    this.draw = draw;
    this.open = open;
    this.onChosen = chosen;
    this.items = [];
    this.chosen = null;
    this.openedKey = null;
    this.drawn = new Map();
    this.space = el("div", { class: "space", role: "presentation" });
    this.svg = el("svg", { width: "1", height: "0", "aria-hidden": "true" });
    this.space.append(this.svg);
    box.append(this.space);
    box.addEventListener("scroll", () => this.soon(), { passive: true });
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("click", (event) => this.click(event));
    new ResizeObserver(() => this.soon()).observe(box);
  }

  show(items) {
    this.items = items;
    this.soon();
  }

  soon() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.render();
    });
  }

  render() {
    this.svg.setAttribute("height", String(this.items.length * ROW_PIXELS));
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_PIXELS) - BEYOND);
    const last = Math.min(this.items.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW_PIXELS) + BEYOND);
    const wanted = new Map();
    for (let index = first; index < last; index++) wanted.set(this.items[index].key, index);
    for (const [key, option] of this.drawn) {
      if (!wanted.has(key)) {
        option.remove();
        this.drawn.delete(key);
      }
    }
    for (const [key, index] of wanted) this.place(key, index);
    const active = this.drawn.get(this.chosen);
    if (active) this.box.setAttribute("aria-activedescendant", active.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  place(key, index) {
    let option = this.drawn.get(key);
    if (!option) {
      option = el("div", { role: "option", id: `option-${key}` });
      option.dataset.key = key;
      this.drawn.set(key, option);
      this.space.append(option);
    }
    const drawn = this.draw(this.items[index]);
    option.className = `option ${drawn.classes}${key === this.chosen ? " chosen" : ""}`;
    option.style.transform = `translateY(${index * ROW_PIXELS}px)`;
    option.setAttribute("aria-selected", String(key === this.openedKey));
    option.setAttribute("aria-setsize", String(this.items.length));
    option.setAttribute("aria-posinset", String(index + 1));
    renew(option, drawn.children);
  }

  click(event) {
    const key = event.target.closest("[role=option]")?.dataset.key;
    if (key === undefined) return;
    this.choose(key);
    this.open(this.items.find((item) => item.key === key));
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_PIXELS) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const present = this.items.findIndex((item) => item.key === this.chosen);
    if (event.key in moves && this.items.length) {
      const next = present < 0 ? 0 : Math.min(this.items.length - 1, Math.max(0, present + moves[event.key]));
      this.choose(this.items[next].key);
      this.intoSight(next);
    } else if (event.key === "Enter" && present >= 0) {
      this.open(this.items[present]);
    } else {
      return;
    }
    event.preventDefault();
  }

  choose(key) {
    this.chosen = key;
    this.onChosen?.(key);
    this.render();
  }

  intoSight(index) {
    const top = index * ROW_PIXELS;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW_PIXELS > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW_PIXELS - this.box.clientHeight;
    this.render();
  }
}
