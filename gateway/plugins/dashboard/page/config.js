/** The configuration: an editor with line numbers, problems beside lines, help from the schema, and a diff first. */

import { ask, send, tell } from "./acts.js";
import { get, post } from "./api.js";
import { chip, h, quiet, said, show } from "./dom.js";
import { plural } from "./format.js";
import { facts } from "./tables.js";

const CHECK_MS = 500;

/** Return the keys down to a line, by indentation; members of lists are `-`. */
function keysAt(text, line) {
  const found = [];
  let limit = Infinity;
  for (const one of text.split("\n").slice(0, line + 1).reverse()) {
    const [, indent, dashes, key] = /^(\s*)((?:- +)*)(?:(["']?[\w.*-]+["']?)\s*:|.*)/.exec(one);
    if (!one.trim() || one.trim().startsWith("#") || indent.length >= limit) continue;
    if (key && indent.length + dashes.length < limit) found.unshift(key.replace(/["']/g, ""));
    if (dashes) found.unshift("-");
    limit = indent.length;
    if (!limit) break;
  }
  return found;
}

/** Return all parts of a JSON schema that say something of the value at some keys. */
function schemaAt(schema, keys) {
  const options = (node) => {
    if (!node || typeof node !== "object") return [];
    if (node.$ref) return options(node.$ref.slice(2).split("/").reduce((one, key) => one?.[key], schema));
    return [node, ...["anyOf", "oneOf", "allOf"].flatMap((kind) => node[kind] ?? []).flatMap(options)];
  };
  const inner = (key) => (one) => options(key === "-" ? one.items : (one.properties?.[key] ?? one.additionalProperties));
  return keys.reduce((nodes, key) => nodes.flatMap(inner(key)), options(schema));
}

export class Config {
  name = "config";
  title = "Configuration";
  tall = true;
  tools = h("span");
  body = h("div.panel");
  files = [];
  file = null;
  problems = [];
  asked = 0;
  timer = null;

  get dirty() {
    return this.file !== null && this.text.value !== this.file.text;
  }

  /** Load the files, unless one is being changed. */
  async load() {
    if (this.dirty) return;
    try {
      Object.assign(this, await get("/api/config"));
    } catch (error) {
      if (error.status !== 409) throw error;
      return show(this.body, h("p.empty", said(error.message))); // they cannot be shown
    }
    this.show(this.files.find((one) => one.name === this.file?.name) ?? this.files[0]);
  }

  show(file) {
    if (file.sha256 === this.file?.sha256 && file.name === this.file.name) return;
    this.file = file;
    this.text = h("textarea.code", {
      spellcheck: "false",
      autocapitalize: "off",
      wrap: "off",
      readonly: !file.writable,
      "aria-label": `Text of ${file.name}`,
      "aria-describedby": "config-help",
      oninput: () => this.changed(),
      onclick: () => this.explain(),
      onkeyup: () => this.explain(),
    });
    this.text.value = file.text;
    this.numbers = h("div.numbers", { "aria-hidden": "true" });
    this.found = h("div.problems", { role: "status" });
    this.help = h("div.schema-help", { id: "config-help" });
    this.save = h("button.strong", { onclick: () => this.review() }, "Review and save");
    this.undo = h("button", { onclick: () => this.reset() }, "Undo all");
    const pick = h("select", { "aria-label": "File", onchange: () => this.leave(pick) }, this.files.map((one) => h("option", { selected: one === file }, one.name)));
    show(
      this.body,
      h("div.acts", pick, h("span.spring"), file.writable ? [this.undo, this.save] : chip("read only", "open")),
      h("div.editor.scroll", this.numbers, this.text),
      this.found,
      this.help,
    );
    this.changed();
  }

  /** Show the file that was chosen. */
  async leave(pick) {
    const next = this.files.find((one) => one.name === pick.value);
    if (!this.dirty || (await ask("Leave this file? What you changed in it is not saved.", "Leave"))) this.show(next);
    else pick.value = this.file.name;
  }

  /** Take back what was changed, and load the file: it may be another one meanwhile. */
  reset() {
    this.text.value = this.file.text;
    this.changed();
    this.load().catch(() => {});
  }

  changed() {
    this.count();
    this.save.disabled = this.undo.disabled = !this.dirty;
    this.explain();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check().catch((error) => show(this.found, h("p.bad", said(error.message)))), CHECK_MS);
  }

  /** Number the lines; those with a problem stand out. */
  count() {
    const bad = new Set(this.problems.map((one) => one.line));
    this.text.rows = this.text.value.split("\n").length;
    show(this.numbers, Array.from({ length: this.text.rows }, (_, at) => h("span", { class: bad.has(at + 1) ? "bad" : "" }, at + 1)));
  }

  /** Have the gateway check the text. Return the diff, or null if another text is there meanwhile. */
  async check() {
    const asked = ++this.asked;
    const { problems, diff } = await post("/api/config/check", { name: this.file.name, text: this.text.value });
    if (asked !== this.asked) return null;
    this.problems = problems;
    this.count();
    const jump = (line) => h("button.plain", { onclick: () => this.jump(line) }, line ? `line ${line}` : "file");
    const problem = (one) => h("li", jump(one.line), h("b.mono", said(one.key)), " ", said(one.message));
    const none = h("p.good", this.dirty ? "No problem found. It is not saved yet." : "No problem found.");
    show(this.found, problems.length ? [h("p.bad", plural(problems.length, "problem")), h("ul", problems.map(problem))] : none);
    return diff;
  }

  /** Select a line. */
  jump(line) {
    const lines = this.text.value.split("\n");
    const from = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    this.text.focus();
    this.text.setSelectionRange(from, from + (lines[line - 1]?.length ?? 0));
    this.numbers.children[line - 1]?.scrollIntoView({ block: "center" });
    this.explain();
  }

  /** Tell what the schema says of the key at the cursor. */
  explain() {
    const keys = keysAt(this.text.value, this.text.value.slice(0, this.text.selectionStart).split("\n").length - 1);
    const nodes = keys.length && this.structure ? schemaAt(this.structure, keys) : [];
    const first = (name) => nodes.find((one) => (one[name] ?? null) !== null)?.[name];
    const all = (pick) => [...new Set(nodes.flatMap(pick))];
    const choices = all((one) => one.enum ?? ("const" in one ? [one.const] : []));
    const type = choices.length ? [] : all((one) => one.type ?? []);
    const names = all((one) => Object.keys(one.properties ?? {}));
    show(
      this.help,
      nodes.length ? h("b.mono", said(keys.join(".").replaceAll(".-", "[]"))) : quiet("Put the cursor on a key to read what it does."),
      facts({ means: first("description"), "one of": choices, type, "by default": JSON.stringify(first("default")), keys: names }),
    );
  }

  /** Show the diff, and save once it is confirmed. */
  async review() {
    try {
      const diff = await this.check();
      if (this.problems.length) throw new Error("It is not saved: mend the problems below first.");
      if (!(await ask(`Save these changes to ${this.file.name}?`, "Save", changes(diff ?? "")))) return;
    } catch (error) {
      return tell({ ok: false, text: error.message });
    }
    const { name, sha256 } = this.file;
    const text = this.text.value;
    const result = await send("/api/config/save", { name, text, sha256 });
    if (!result.ok) return tell(result);
    if (!result.answer.saved) return this.changed();
    const later = result.answer.needs_restart.join(", ");
    tell({ ok: true, text: later ? `Saved. After the next start: ${later}.` : "Saved and in use." });
    this.file = { ...this.file, text, sha256: null }; // what the gateway has written is loaded
    await this.load().catch(() => {});
  }
}

/** Return a diff with its lines marked. */
function changes(diff) {
  const tones = { "+": "ins", "-": "del", "@": "quiet" };
  const lines = diff.split("\n").filter((one) => !/^(\+\+\+|---) /.test(one));
  return h("pre.diff", { tabindex: 0, role: "region", "aria-label": "Changes" }, lines.map((one) => h("span", { class: tones[one[0]] }, `${one}\n`)));
}
