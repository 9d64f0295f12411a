/** The page: sign-in, panels, and when each panel is loaded again. */

import { ApiError, forgetToken, get, sendable, setToken, takeToken, token } from "./api.js";
import { Agents } from "./agents.js";
import { alert, standing } from "./alerts.js";
import { Channels } from "./channels.js";
import { learn, said, show } from "./dom.js";
import { Events } from "./events.js";
import { plural, setClock, since } from "./format.js";
import { keys } from "./keys.js";
import { Live } from "./live.js";
import { Outbox } from "./outbox.js";
import { Places } from "./places.js";
import { Plugins } from "./plugins.js";
import { Processes } from "./processes.js";
import { Refresh } from "./refresh.js";
import { Audit, Turns, Warnings } from "./tables.js";
import { Usage, today } from "./usage.js";

const $ = (id) => document.getElementById(id);
const body = (id) => $(id).querySelector(".body");

const live = new Live({
  list: $("stream"),
  count: $("live-count"),
  pause: $("pause"),
  channel: $("f-channel"),
  conversation: $("f-conversation"),
  fate: $("f-fate"),
  text: $("f-text"),
});
const agents = new Agents(body("agents"));
const places = new Places({ list: $("places"), opened: $("opened"), count: $("conversations-count") });
const channels = new Channels(body("channels"));
const processes = new Processes($("processes"), body("processes"), $("processes-count"));
const usage = new Usage(body("share"), body("cost"), document.querySelector("#share .hours"));
const turns = new Turns(body("turns"));
const outbox = new Outbox(body("outbox"), $("outbox-count"));
const audit = new Audit(body("audit"));
const warnings = new Warnings(body("warnings"));
const plugins = new Plugins($("main"));

const refresh = {
  status: new Refresh(status, failed, 3_000, 15_000),
  channels: new Refresh(() => channels.refresh().then(alerts), failed, 5_000),
  places: new Refresh(() => places.refresh(), failed, 3_000),
  opened: new Refresh(() => places.load(), failed, 2_000, Infinity),
  usage: new Refresh(() => usage.refresh(), failed, 10_000),
  turns: new Refresh(() => turns.refresh(), failed, 3_000),
  outcomes: new Refresh(() => live.outcomes(), failed, 1_000),
  outbox: new Refresh(() => outbox.refresh().then(alerts), failed, 3_000),
  plugins: new Refresh(() => plugins.refresh(), failed, 10_000),
  audit: new Refresh(() => audit.refresh(), failed, 5_000),
  history: new Refresh(() => agents.history(), failed, 60_000, 300_000),
};

let ready = null;

async function status() {
  const told = await get("/api/status");
  setClock(told.now);
  $("version").textContent = told.version;
  $("version").title = `running for ${since(told.started)}, since ${new Date(told.started).toLocaleString()}`;
  show($("model"), said(told.model));
  ready = told.ready;
  agents.status(told);
  processes.paint(told.processes);
  today($("today"), told);
  alerts();
}

/** Update readiness and alerts. */
function alerts() {
  if (ready !== null) standing($("ready"), ready, channels.all);
  alert($("alerts"), channels.all, outbox.uncertain);
}

function heard(type, event) {
  learn(event);
  if (type === "notification") {
    live.take(event);
    refresh.places.soon();
    if (event.kind === "command") for (const one of ["audit", "outcomes"]) refresh[one].soon();
    if (event.conversation === places.chosen) refresh.opened.soon();
  } else if (type === "dmn" || type === "text" || type === "tool" || type === "turn") {
    agents.take(type, event);
    if (type === "turn") for (const one of ["status", "places"]) refresh[one].soon();
    if (type === "turn" && event.state === "ended") for (const one of ["turns", "usage", "outcomes"]) refresh[one].soon();
    if (type === "turn" && event.conversation === places.chosen) refresh.opened.soon();
  } else if (type === "post" || type === "delivery") {
    refresh.outbox.soon();
    if (event.conversation === places.chosen) refresh.opened.soon();
  } else if (type === "channel") {
    channels.take(event);
    refresh.status.soon();
    alerts();
  } else if (type === "log") warnings.take(event);
  else if (type === "reloaded") {
    for (const one of event.problems) warnings.take({ at: event.at, level: "error", logger: "reload", message: one });
    for (const one of event.later)
      warnings.take({
        at: event.at,
        level: "warning",
        logger: "reload",
        message: `${one} takes effect at the next start`,
      });
    for (const one of ["status", "channels"]) refresh[one].soon();
  } else if (type === "lost") {
    told(
      "warning",
      `${plural(event.count, "event was", "events were")} dropped because there were too many; the page reads the log again`,
    );
    again();
  }
}

/** Load everything from the API. */
async function again() {
  try {
    await live.load();
  } catch (error) {
    failed(error);
  }
  for (const one of Object.values(refresh)) one.soon();
}

let retry = null;
let line = "";
const events = new Events({
  heard,
  state(name, retry_s) {
    clearInterval(retry);
    const words = { connecting: "connecting", live: "live", resting: "resting", refused: "no access" };
    const chip = $("connection");
    chip.className = `chip ${name === "live" ? "done" : name === "refused" ? "bad" : "open"}`;
    chip.title =
      name === "resting" ? "This tab is in the background: updates continue when you open it" : "The connection for live events";
    if (name === "waiting") {
      const until = Date.now() + retry_s * 1000;
      const tell = () =>
        (chip.textContent = `reconnecting in ${Math.max(0, Math.ceil((until - Date.now()) / 1000))} s`);
      chip.textContent = "reconnecting";
      tell();
      retry = setInterval(tell, 1000);
    } else if (name !== "connecting" || line !== "waiting") chip.textContent = words[name];
    if (name === "live" && line) for (const one of Object.values(refresh)) one.soon(); // the connection was lost meanwhile
    if (name === "live" || name === "waiting") line = name;
  },
  refused: (error) => failed(error),
});

function failed(error) {
  if (error.status === 401) {
    if (error.asker !== token()) return; // the answer to an older token
    forgetToken();
    ask("The gateway refuses this token.");
  } else if (error.status === 403) ask(error.message);
  else if (error.status) told("error", `the gateway answered ${error.status}: ${error.message}`);
  else if (!(error instanceof ApiError) && error.name !== "TimeoutError") console.error(error);
}

/** Messages of the page itself. */
const told = (level, message) => warnings.take({ at: new Date().toISOString(), level, logger: "this page", message });

/** Show the sign-in form instead of the panels. */
function ask(why) {
  events.stop();
  $("main").hidden = true;
  $("entry").hidden = false;
  $("entry-why").textContent = why;
  $("connection").textContent = "";
  $("connection").className = "chip";
  $("token").value = "";
  $("token").focus();
}

$("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  const words = $("token").value.trim();
  if (!sendable(words)) {
    $("entry-why").textContent = "A token consists of letters, digits and signs, without spaces.";
    return;
  }
  setToken(words);
  begin();
});

async function begin() {
  if (!token()) return ask("");
  $("entry").hidden = true;
  $("main").hidden = false;
  $("main").setAttribute("aria-busy", "true");
  line = "";
  let after = null;
  try {
    after = await live.load();
  } catch (error) {
    failed(error);
    if (error.status) return;
  }
  events.start(after ?? 0);
  await Promise.all(Object.values(refresh).map((one) => one.now()));
  performance.mark("reverie-shown");
  $("main").setAttribute("aria-busy", "false");
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(document.resting);
  if (!document.hidden) {
    if (token() && !events.running && $("entry").hidden) {
      events.start();
      for (const one of Object.values(refresh)) one.soon();
    }
  } else document.resting = setTimeout(() => events.running && events.stop("resting"), 60_000); // a browser opens six connections per host
});

setInterval(() => {
  if (document.hidden || !events.running) return;
  agents.tick();
  for (const one of Object.values(refresh)) one.tick();
}, 1000);

window.addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#token=")) return;
  takeToken();
  begin();
});

keys({ live, places });
takeToken();
begin();
