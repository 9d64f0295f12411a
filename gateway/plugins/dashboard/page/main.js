/** The page: sign-in, views, and when each part is loaded again. */

import { button, forgetResults, resultOf } from "./acts.js";
import { Agents } from "./agents.js";
import { ApiError, forgetToken, get, loadMe, may, sendable, setToken, takeToken, token } from "./api.js";
import { alert, Channels, Outbox, processes, standing } from "./channels.js";
import { Config } from "./config.js";
import { learn, said, show } from "./dom.js";
import { Events } from "./events.js";
import { plural, setClock, since } from "./format.js";
import { keys } from "./keys.js";
import { legend } from "./legend.js";
import { Live } from "./live.js";
import { Palette } from "./palette.js";
import { Places } from "./places.js";
import { Plugins } from "./plugins.js";
import { Refresh } from "./refresh.js";
import { Search } from "./search.js";
import { Audit, Turns, Warnings } from "./tables.js";
import { OPERATOR, Talk } from "./talk.js";
import { today, Usage } from "./usage.js";
import { address, Views } from "./views.js";
import { Waiting } from "./waiting.js";

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
const agents = new Agents($("agents"), $("running"));
const running = (id) => agents.turnIn(id);
const models = () => agents.models.map((one) => one.name);
const places = new Places({
  view: $("conversations"),
  list: $("places"),
  opened: $("opened"),
  count: $("conversations-count"),
  filter: $("f-place"),
  running,
  models,
});
const talk = new Talk($("talk").querySelector(".opened"), { running, models });
const channels = new Channels($("health"));
const usage = new Usage({ share: $("share"), cost: $("cost"), sums: $("sums"), hours: $("hours"), by: $("by") });
const turns = new Turns(body("turns"));
const outbox = new Outbox($("outbox"), $("outbox-count"));
const audit = new Audit(body("audit"));
const warnings = new Warnings(body("warnings"));
const plugins = new Plugins(body("plugins"), $("agent"), $("plugins"));
const config = new Config(body("config"));
const search = new Search({ form: $("search-form"), text: $("search-text"), list: $("found"), count: $("search-count") });
const waiting = new Waiting(body("waiting"), (number) => views.count("waiting", number, "wait for you"));
show($("legend"), legend());

const refresh = {
  status: new Refresh(status, failed, 3_000, null, 15_000),
  waiting: new Refresh(() => waiting.refresh(), failed, 2_000, null, 20_000),
  channels: new Refresh(() => channels.refresh().then(alerts), failed, 5_000),
  outbox: new Refresh(() => outbox.refresh().then(alerts), failed, 3_000),
  places: new Refresh(() => places.refresh(), failed, 3_000, ["conversations"]),
  opened: new Refresh(() => places.load(), failed, 1_000, ["conversations"], Infinity),
  talk: new Refresh(() => talk.load(), failed, 1_000, ["talk"], Infinity),
  usage: new Refresh(() => usage.refresh(), failed, 10_000, ["costs"]),
  turns: new Refresh(() => turns.refresh(), failed, 3_000, ["turns"]),
  outcomes: new Refresh(() => live.outcomes(), failed, 1_000, ["live"]),
  plugins: new Refresh(() => plugins.refresh(), failed, 5_000, ["agent", "plugins"]),
  audit: new Refresh(() => audit.refresh(), failed, 3_000, ["audit"]),
  history: new Refresh(() => agents.history(), failed, 30_000, ["agent"], 300_000),
  models: new Refresh(() => agents.loadModels(), failed, 10_000, ["agent", "conversations"], 300_000),
  config: new Refresh(() => config.refresh(), failed, 5_000, ["config"], Infinity),
};
const soon = (...names) => names.forEach((name) => refresh[name].soon());

const views = new Views($("nav"), $("menu"), (view, part, changed) => {
  if (changed) {
    forgetResults();
    waiting.forget();
    live.rows.paint();
  }
  if (view === "conversations") places.follow(part, !changed).catch(failed);
  if (view === "talk" && changed) talk.open(OPERATOR).catch(failed);
  if (token() && changed) for (const one of Object.values(refresh)) if (one.views?.includes(view)) one.now();
});
const palette = new Palette($("palette"), {
  go: (view) => (location.hash = address(view)),
  views: () => views.names.map((name) => [name, views.link(name).firstChild.data.trim()]),
  places: () => places.known.map((one) => one.conversation),
});

let ready = null;

async function status() {
  const told = await get("/api/status");
  setClock(told.now);
  show($("version"), `Reverie ${told.version}`);
  $("version").title = `running for ${since(told.started)}, since ${new Date(told.started).toLocaleString()}`;
  show($("model"), said(told.model));
  ready = told.ready;
  agents.status(told);
  processes($("processes"), told.processes);
  today($("today"), told);
  alerts();
}

/** Update readiness and alerts. */
function alerts() {
  if (ready !== null) standing($("ready"), ready, channels.all);
  alert($("alerts"), channels.all, outbox.uncertain);
}

/** Show again what a change in a conversation concerns. */
function changed(conversation) {
  soon("places");
  if (conversation === places.chosen) soon("opened");
  if (conversation === OPERATOR) soon("talk");
}

function heard(type, event) {
  learn(event);
  if (type === "notification") {
    live.take(event);
    changed(event.conversation);
    soon("waiting");
    if (event.kind === "command") soon("audit", "outcomes");
  } else if (type === "dmn" || type === "text" || type === "tool" || type === "turn") {
    agents.take(type, event);
    for (const one of [talk, places.talk]) if (one.id === event.conversation) one.live();
    if (type === "turn") {
      changed(event.conversation);
      soon("status", "waiting");
      if (event.state === "ended") soon("turns", "usage", "outcomes", "plugins");
    }
    if (type === "tool") soon("waiting");
  } else if (type === "post" || type === "delivery") {
    changed(event.conversation);
    soon("outbox");
  } else if (type === "channel") {
    channels.take(event);
    soon("status");
    alerts();
  } else if (type === "log") warnings.take(event);
  else if (type === "reloaded") {
    for (const one of event.problems) warnings.take({ at: event.at, level: "error", logger: "reload", message: one });
    for (const one of event.later)
      warnings.take({ at: event.at, level: "warning", logger: "reload", message: `${one} takes effect at the next start` });
    soon("status", "channels", "config");
  } else if (type === "lost") {
    told("warning", `${plural(event.count, "event was", "events were")} dropped because there were too many; the page reads the log again`);
    live.load().catch(failed);
    soon(...Object.keys(refresh));
  }
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
    chip.title = name === "resting" ? "This tab is in the background: updates continue when you open it" : "The connection for live events";
    if (name === "waiting") {
      const until = Date.now() + retry_s * 1000;
      const tell = () => (chip.textContent = `reconnecting in ${Math.max(0, Math.ceil((until - Date.now()) / 1000))} s`);
      tell();
      retry = setInterval(tell, 1000);
    } else if (name !== "connecting" || line !== "waiting") chip.textContent = words[name];
    if (name === "live" && line) soon(...Object.keys(refresh)); // the connection was lost meanwhile
    if (name === "live" || name === "waiting") line = name;
  },
  refused: (error) => failed(error),
});

function failed(error) {
  if (error.status === 401) {
    if (error.asker !== token()) return; // the answer to an older token
    forgetToken();
    ask("The gateway refuses this token.");
  } else if (error.status) told("error", `the gateway answered ${error.status}: ${error.message}`);
  else if (!(error instanceof ApiError) && error.name !== "TimeoutError") console.error(error);
}

/** Messages of the page itself. */
const told = (level, message) => warnings.take({ at: new Date().toISOString(), level, logger: "this page", message });

/** Show the sign-in form instead of the views. */
function ask(why) {
  events.stop();
  $("frame").hidden = $("menu").hidden = $("command").hidden = true;
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
  $("main").setAttribute("aria-busy", "true");
  let after = null;
  try {
    await loadMe();
    after = await live.load();
  } catch (error) {
    if (error.status === 403) return ask(error.message);
    failed(error);
    if (error.status) return;
  }
  $("frame").hidden = $("menu").hidden = $("command").hidden = false;
  views.offer("config", may("own"));
  show($("reload"), button({ label: "Read the files again", key: "reload", words: ["reload"] }), resultOf("reload"));
  events.start(after ?? 0);
  Refresh.view = "";
  views.follow(false);
  await Promise.all(Object.values(refresh).map((one) => one.now()));
  performance.mark("reverie-shown");
  $("main").setAttribute("aria-busy", "false");
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(document.resting);
  if (!document.hidden) {
    if (token() && !events.running && $("entry").hidden) {
      events.start();
      soon(...Object.keys(refresh));
    }
  } else document.resting = setTimeout(() => events.running && events.stop("resting"), 60_000); // a browser opens six connections per host
});

setInterval(() => {
  if (document.hidden || !events.running) return;
  agents.tick();
  for (const one of Object.values(refresh)) one.tick();
}, 1000);

window.addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) {
    takeToken();
    begin();
  } else if (location.hash === "#main") {
    history.replaceState(null, "", address(Refresh.view, places.chosen && Refresh.view === "conversations" ? places.chosen : ""));
    $("main").focus();
  } else views.follow(true);
});

const command = () => !$("frame").hidden && palette.open(Refresh.view === "conversations" ? places.chosen : "");
$("command").addEventListener("click", command);
keys({
  live,
  command,
  search: () => document.querySelector(`#${Refresh.view} input[type=search]`),
  go: (index) => !$("frame").hidden && views.names[index] && (location.hash = address(views.names[index])),
});
takeToken();
begin();
