/** The configuration: an editor with line numbers, problems beside lines, help from the schema, and a diff first. */

import { ask, forgetResults, resultOf, send, tell } from "./acts.js";
import { get, post } from "./api.js";
import { h, said, show } from "./dom.js";
import { plural } from "./format.js";

const KEY = "configuration";
const CHECK_MS = 500;

/** Return the keys down to a line, by indentation; members of lists are `-`. */
export function keysAt(text, line) {
  const found = [];
  let limit = Infinity;
  for (const one of text.split("\n").slice(0, line + 1).reverse()) {
    const [, indent, dashes, key] = /^(\s*)((?:- +)*)(?:(["']?[\w.*-]+["']?)\s*:|.*)/.exec(one);
    if (!one.trim() || one.trim().startsWith("#") || indent.length >= limit) continue;
    const inner = indent.length + dashes.length;
    if (key && inner < limit) found.unshift(key.replace(/["']/g, ""));
    if (dashes) found.unshift("-");
    limit = indent.length;
    if (!limit) break;
  }
  return found;
}

/** Return the part of a JSON schema for keys, or null. */
export function schemaAt(schema, keys) {
  const options = (node) => {
    if (!node) return [];
    if (node.$ref) return options(node.$ref.slice(2).split("/").reduce((one, key) => one?.[key], schema));
    return [node, ...[...(node.anyOf ?? []), ...(node.oneOf ?? []), ...(node.allOf ?? [])].flatMap(options)];
  };
  let nodes = [schema];
  for (const key of keys) {
    const all = nodes.flatMap(options);
    nodes = all.map((one) => (key === "-" ? one.items : (one.properties?.[key] ?? (one.additionalProperties || null)))).filter((one) => one && typeof one === "object");
    if (!nodes.length) return null;
  }
  const all = nodes.flatMap(options);
  const first = (name) => all.find((one) => one[name] !== undefined)?.[name];
  return {
    description: first("description"),
    fallback: first("default"),
    choices: all.flatMap((one) => one.enum ?? (one.const === undefined ? [] : [one.const])),
    types: [...new Set(all.map((one) => one.type).filter(Boolean))],
    keys: [...new Set(all.flatMap((one) => Object.keys(one.properties ?? {})))],
  };
}

export class Config {
  constructor(root) {
    Object.assign(this, { root, files: null, problems: [], asked: 0 });
  }

  /** Load the files, unless one is being changed. */
  async refresh() {
    if (this.dirty) return;
    try {
      Object.assign(this, await get("/api/config"));
    } catch (error) {
      if (error.status !== 409) throw error;
      return show(this.root, h("p.empty", said(error.message))); // they cannot be shown
    }
    this.show(this.files.find((one) => one.name === this.file?.name) ?? this.files[0]);
  }

  get dirty() {
    return Boolean(this.file) && this.text.value !== this.file.text;
  }

  show(file) {
    if (file.sha256 === this.file?.sha256 && file.name === this.file.name && this.root.hasChildNodes()) return;
    this.file = file;
    this.text = h("textarea", { class: "code", spellcheck: "false", autocapitalize: "off", wrap: "off", "aria-label": `Text of ${file.name}`, "aria-describedby": "config-help", readonly: !file.writable });
    this.text.value = file.text;
    this.numbers = h("div.numbers", { "aria-hidden": "true" });
    this.found = h("div.problems", { role: "status" });
    this.help = h("div.schema-help", { id: "config-help" });
    this.save = h("button.strong", { type: "button", on: { click: () => this.review() } }, "Review and save");
    this.undo = h("button", { type: "button", on: { click: () => this.reset() } }, "Undo all");
    const pick = h("select", { "aria-label": "File" }, this.files.map((one) => h("option", { selected: one === file }, one.name)));
    pick.addEventListener("change", async () => {
      const next = this.files.find((one) => one.name === pick.value);
      if (!this.dirty || (await ask("Leave this file? What you changed in it is not saved.", "Leave"))) this.show(next);
      else pick.value = file.name;
    });
    this.text.addEventListener("input", () => this.changed());
    this.text.addEventListener("scroll", () => (this.numbers.scrollTop = this.text.scrollTop));
    for (const name of ["click", "keyup"]) this.text.addEventListener(name, () => this.explain());
    const writable = file.writable ? [this.undo, this.save] : h("span.chip.open", "read only");
    show(
      this.root,
      h("div.acts", this.files.length > 1 ? pick : h("strong.mono", said(file.name)), h("span.spring"), writable),
      resultOf(KEY),
      h("div.editor", this.numbers, this.text),
      this.found,
      this.help,
    );
    this.changed();
  }

  reset() {
    this.text.value = this.file.text;
    forgetResults();
    this.changed();
    this.refresh().catch(() => {}); // the file may have changed meanwhile
  }

  changed() {
    this.lines();
    this.save.disabled = this.undo.disabled = !this.dirty;
    this.explain();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check().catch((error) => show(this.found, h("p.bad", said(error.message)))), CHECK_MS);
  }

  lines() {
    const bad = new Set(this.problems.map((one) => one.line));
    const count = this.text.value.split("\n").length;
    show(this.numbers, Array.from({ length: count }, (_, at) => h(bad.has(at + 1) ? "span.bad" : "span", String(at + 1))));
    this.numbers.scrollTop = this.text.scrollTop;
  }

  /** Have the gateway check the text. Return the diff, or null if another text is there meanwhile. */
  async check() {
    const asked = ++this.asked;
    const { problems, diff } = await post("/api/config/check", { name: this.file.name, text: this.text.value });
    if (asked !== this.asked) return null;
    this.problems = problems;
    this.lines();
    const line = (one) => h("li", h("button.plain", { type: "button", on: { click: () => this.jump(one.line) } }, one.line ? `line ${one.line}` : "file"), h("b.mono", said(one.key)), " ", said(one.message));
    show(this.found, problems.length ? [h("p.bad", plural(problems.length, "problem")), h("ul", problems.map(line))] : h("p.good", this.dirty ? "No problem found. It is not saved yet." : "No problem found."));
    return diff;
  }

  jump(line) {
    const before = this.text.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    this.text.focus();
    this.text.setSelectionRange(before, before + (this.text.value.split("\n")[line - 1]?.length ?? 0));
    this.text.scrollTop = Math.max(0, (line - 6) * (this.text.scrollHeight / this.text.value.split("\n").length));
    this.explain();
  }

  /** Tell what the schema says of the key at the cursor. */
  explain() {
    const keys = keysAt(this.text.value, this.text.value.slice(0, this.text.selectionStart).split("\n").length - 1);
    const found = keys.length && this.structure ? schemaAt(this.structure, keys) : null;
    const path = keys.join(".").replaceAll(".-", "[]");
    if (path === this.path && this.help.hasChildNodes()) return;
    this.path = path;
    const fact = (name, value) => (value ? h("span", h("span.quiet", `${name} `), h("code", said(value))) : null);
    show(
      this.help,
      found
        ? [
            h("b.mono", said(path)),
            h("p", said(found.description ?? "")),
            fact("one of", found.choices.map(String).join(", ")),
            fact("type", found.choices.length ? "" : found.types.join(" or ")),
            fact("by default", found.fallback === undefined || found.fallback === null ? "" : JSON.stringify(found.fallback)),
            fact("keys", found.keys.join(", ")),
          ]
        : h("p.quiet", "Put the cursor on a key to read what it does."),
    );
  }

  /** Show the diff, and save once it is confirmed. */
  async review() {
    let diff;
    try {
      diff = await this.check();
    } catch (error) {
      return tell(KEY, { ok: false, text: error.message });
    }
    if (this.problems.length) return tell(KEY, { ok: false, text: "It is not saved: mend the problems below first." });
    const tone = { "+": "ins", "-": "del", "@": "quiet" };
    const lines = (diff ?? "").split("\n").filter((one) => !/^(\+\+\+|---) /.test(one));
    const shown = h("pre.diff", { tabindex: 0, role: "region", "aria-label": "Changes" }, lines.map((one) => h(`span.${tone[one[0]] ?? "same"}`, `${one}\n`)));
    if (!(await ask(`Save these changes to ${this.file.name}?`, "Save", shown))) return;
    const result = await send("/api/config/save", { name: this.file.name, text: this.text.value, sha256: this.file.sha256 });
    if (!result.ok) return tell(KEY, result);
    if (!result.answer.saved) return this.changed();
    this.file = { ...this.file, text: this.text.value };
    const later = result.answer.needs_restart;
    const text = later.length ? `Saved. After the next start: ${later.map((one) => `\`${one}\``).join(", ")}.` : "Saved and in use.";
    tell(KEY, { ok: true, text });
    this.text.value = this.file.text;
    this.changed();
    Object.assign(this, { file: { ...this.file, sha256: "" } });
    await this.refresh().catch(() => {});
  }
}
