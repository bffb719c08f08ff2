// One stream of server-sent events. It says when it hears nothing any more, and comes back by itself.

import { now, setClock } from "./words.js";

const SILENCE_MILLISECONDS = 8000;
const RETRY_MILLISECONDS = 3000;

export class Stream {
  /** `on` has a function for each event, and `link(state)` for "open", "lost" and "login". */
  constructor(on) {
    this.on = on;
    this.since = "";
    this.opened = { group: "", node: "" };
    this.heardAt = null;
    this.source = null;
    this.state = "";
    setInterval(() => this.watch(), 1000);
  }

  open(opened) {
    this.opened = opened;
    this.connect();
  }

  async connect() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
    const attempt = (this.attempt = {});
    if (await this.mustLogIn()) this.change("login");
    else if (attempt === this.attempt) this.listen();
  }

  /** Whether a token is asked for that we have not given; an operator that does not answer asks for nothing. */
  async mustLogIn() {
    try {
      const told = await (await fetch("/api/session")).json();
      return told.asks && told.viewer === null;
    } catch {
      return false;
    }
  }

  listen() {
    const query = new URLSearchParams({ since: this.since, group: this.opened.group, node: this.opened.node });
    const source = (this.source = new EventSource(`/api/events?${query}`));
    for (const name of ["hello", "rows", "group", "node", "beat"]) {
      source.addEventListener(name, (event) => this.hear(source, name, event));
    }
    source.onerror = () => this.failed(source);
  }

  hear(source, name, event) {
    if (source !== this.source) return;
    const told = JSON.parse(event.data);
    if (name === "hello" || name === "beat") setClock(told.now);
    this.heardAt = now();
    this.change("open");
    if (name === "rows") {
      const isNew = this.since.split(":")[0] !== told.boot;
      this.since = `${told.boot}:${told.version}`;
      this.on.rows(told.rows, isNew);
    } else {
      this.on[name](told);
    }
  }

  failed(source) {
    if (source !== this.source) return;
    this.change("lost");
    // While it is not closed the browser tries again by itself.
    if (source.readyState === EventSource.CLOSED) this.retry = setTimeout(() => this.connect(), RETRY_MILLISECONDS);
  }

  watch() {
    if (this.state === "open" && now() - this.heardAt > SILENCE_MILLISECONDS) {
      this.change("lost");
      this.connect();
    }
  }

  change(state) {
    if (state === this.state) return;
    this.state = state;
    this.on.link(state);
  }
}
