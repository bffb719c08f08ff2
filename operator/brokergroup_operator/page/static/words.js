// Words, signs and numbers for people. A state is always a word and a sign, never a colour alone.

export const SEVERITIES = [
  { word: "no writes", sign: "✖", name: "down" },
  { word: "refuses writes", sign: "⊘", name: "refusing" },
  { word: "needs a person", sign: "!", name: "person" },
  { word: "not safe to lose a member", sign: "▲", name: "exposed" },
  { word: "under way", sign: "◔", name: "busy" },
  { word: "well", sign: "●", name: "well" },
  { word: "hibernated", sign: "☾", name: "asleep" },
];

export const STEPS = {
  detected: "the loss is believed",
  fenced: "the old master is dead, or given up",
  decided: "the next master is chosen",
  committed: "it is written, and can't be undone",
  notified: "every broker was notified",
  roleChanged: "the new master says that it is master",
  indexCaughtUp: "the new master was seen with all its queues built",
  routeVisible: "the NameServers were seen to route to it",
  inSync: "enough members can acknowledge",
  firstAck: "the canary's first message was acknowledged",
};

// These are seen, or reached, in any order.
export const LATE_STEPS = ["indexCaughtUp", "routeVisible", "inSync", "firstAck"];

// The server's clock less this browser's.
let skew = 0;

export function setClock(serverMilliseconds) {
  skew = serverMilliseconds - Date.now();
}

export function now() {
  return Date.now() + skew;
}

export function ago(at) {
  if (at === null || at === undefined || Number.isNaN(at)) return "never";
  const seconds = Math.max(0, (now() - at) / 1000);
  if (seconds < 10) return `${seconds.toFixed(1)} s ago`;
  if (seconds < 120) return `${Math.round(seconds)} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

export function clock(at) {
  return new Date(at).toLocaleTimeString([], { hour12: false });
}

export function when(at) {
  const made = new Date(at);
  return `${made.toLocaleDateString()} ${made.toLocaleTimeString([], { hour12: false })}`;
}

export function bytes(count) {
  if (count === null || count === undefined || count < 0) return "unknown";
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  }
  return `${count} B`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 10000) return `${Math.round(value)} ms`;
  return `${(value / 1000).toFixed(1)} s`;
}

export function list(values) {
  return values.length ? values.join(", ") : "none";
}
