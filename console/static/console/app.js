// The console's one script: copying, polling, notices and the playground. No dependency but htmx, which it only wakes.
"use strict";

const POLL_ACTIVE_MS = 3000;
const POLL_HIDDEN_MS = 60000;
const $ = (selector, within = document) => within.querySelector(selector);

// --- Copy buttons

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = $(button.dataset.copy);
  const words = button.dataset.words ??= button.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Press Ctrl+C";
  }
  setTimeout(() => { button.textContent = words; }, 2000);
});

// --- Live parts ask again: often while they are looked at, seldom while they are not

let pollTimer;

function poll() {
  const part = $("[data-poll]");
  if (part && !isSelecting(part)) htmx.trigger(part, "poll");
  schedulePoll();
}

function schedulePoll() {
  clearTimeout(pollTimer);
  if ($("[data-poll]")) pollTimer = setTimeout(poll, document.hidden ? POLL_HIDDEN_MS : POLL_ACTIVE_MS);
}

// New content would take away what somebody is about to copy.
function isSelecting(part) {
  const selection = getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(pollTimer);
  if (document.hidden) schedulePoll(); else poll();
});

// --- What a swap must not move: the focus, and tables that were scrolled sideways

const FOCUSABLE = "a[href], button, input, select, textarea, [tabindex]";
const likeness = (element) => [element.tagName, element.getAttribute("href"), element.getAttribute("aria-label") ?? element.textContent].join();
let kept;

document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  const part = detail.target;
  kept = undefined;
  if (!part.matches("[data-poll]") || !detail.shouldSwap) return;
  detail.shouldSwap = detail.xhr.responseText !== part.shown;
  part.shown = detail.xhr.responseText;
  $("#toasts .stale")?.remove();
  kept = {
    focused: part.contains(document.activeElement) ? likeness(document.activeElement) : "",
    scrolled: [...part.querySelectorAll(".table-wrap")].map((table) => table.scrollLeft),
  };
});

document.addEventListener("htmx:afterSwap", ({ detail }) => {
  if (!kept) { ($("[aria-invalid=true]") ?? $("#main"))?.focus(); return; }
  const same = kept.focused && [...detail.target.querySelectorAll(FOCUSABLE)].find((element) => likeness(element) === kept.focused);
  if (same) same.focus({ preventScroll: true });
  detail.target.querySelectorAll(".table-wrap").forEach((table, index) => { table.scrollLeft = kept.scrolled[index] ?? 0; });
});

// --- Notices: what failed behind the page, with the id that our log knows it by

function notify(text, id) {
  $("#toasts .stale")?.remove();
  const note = document.createElement("div");
  note.className = "note bad stale";
  note.textContent = id ? `${text} Request ${id}.` : text;
  $("#toasts")?.append(note);
}

document.addEventListener("htmx:responseError", ({ detail: { xhr } }) => {
  const page = new DOMParser().parseFromString(xhr.responseText, "text/html");
  notify($("h1", page)?.textContent ?? `The console answered ${xhr.status}.`, xhr.getResponseHeader("X-Request-Id"));
});
document.addEventListener("htmx:sendError", () => notify("The console cannot be reached. What you see may be old."));

// --- The playground

class Playground {
  constructor(root) {
    this.root = root;
    this.form = $("#prompt-form");
    this.answer = $("#answer");
    this.versions = JSON.parse(root.dataset.versions);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.call) this.call.abort(); else this.send();
    });
    document.addEventListener("input", () => this.showSnippet());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !this.call) this.form.requestSubmit();
      if (event.key === "Escape") this.call?.abort();
    });
    const tabs = [...root.querySelectorAll("[data-lang]")];
    for (const tab of tabs) {
      tab.addEventListener("click", () => this.choose(tabs, tab));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) this.choose(tabs, tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length]);
      });
    }
    this.choose(tabs, tabs[0], false);
  }

  choose(tabs, chosen, focus = true) {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
    }
    $("#snippet").setAttribute("aria-labelledby", chosen.id);
    if (focus) chosen.focus();
    this.language = chosen.dataset.lang;
    this.showSnippet();
  }

  body() {
    const number = (id) => { const text = $(`#${id}`).value.trim(); return text === "" ? undefined : Number(text); };
    const system = $("#system").value.trim();
    const messages = system ? [{ role: "system", content: system }] : [];
    messages.push({ role: "user", content: $("#prompt").value });
    return {
      model: $("#model").value, messages, max_tokens: number("max_tokens"), temperature: number("temperature"),
      top_p: number("top_p"), seed: number("seed"), stream: true,
    };
  }

  showSnippet() {
    const url = this.root.dataset.gateway;
    const json = JSON.stringify(this.body(), null, 2);
    const python = json.replace(/: true\n}$/, ": True\n}").replace(/\n/g, "\n    ");
    $("#snippet-text").textContent = {
      curl: `curl -N ${url}/chat/completions \\\n  -H "Authorization: Bearer $PAGODA_API_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${json.replaceAll("'", "'\\''")}'`,
      python: `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${url}", api_key=os.environ["PAGODA_API_KEY"])\nfor chunk in client.chat.completions.create(**${python}):\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)`,
      javascript: `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${url}", apiKey: process.env.PAGODA_API_KEY });\nconst stream = await client.chat.completions.create(${json});\nfor await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");`,
    }[this.language];
  }

  async send() {
    if (!$("#prompt").value.trim()) { $("#prompt").focus(); return; }
    this.call = new AbortController();
    this.begin();
    try {
      await this.read(await this.open());
    } catch (error) {
      if (error.name === "AbortError") this.finish("Stopped by you"); else this.finish("Failed", error.message);
    }
    this.call = undefined;
    this.setButton("Send");
  }

  begin() {
    this.began = performance.now();
    this.first = this.reason = undefined;
    this.count = 0;
    const option = $("#model").selectedOptions[0];
    this.prices = option.dataset.input === undefined ? null : [Number(option.dataset.input), Number(option.dataset.output)];
    this.answer.textContent = "";
    this.answer.setAttribute("aria-busy", "true");
    for (const id of ["ttft", "rate", "tokens", "cost", "ended", "version", "replica", "request-id"]) $(`#${id}`).textContent = "–";
    $("#finished").textContent = "";
    this.setButton("Stop");
  }

  // One button with two faces: the focus stays where it is.
  setButton(words) {
    $("#send").textContent = words;
    $("#send").classList.toggle("primary", words === "Send");
  }

  open() {
    return fetch(this.root.dataset.stream, {
      method: "POST",
      body: JSON.stringify({ ...this.body(), stream_options: { include_usage: true } }),
      headers: { "Content-Type": "application/json", "HX-Request": "true", "X-CSRFToken": this.form.csrfmiddlewaretoken.value },
      signal: this.call.signal,
    });
  }

  async read(response) {
    const elsewhere = response.headers.get("HX-Redirect");
    if (elsewhere) { location.assign(elsewhere); throw new Error("You are signed out."); }
    if (response.status === 413) throw new Error(await response.text());
    if (!response.ok || !response.body) throw new Error(`The console answered ${response.status}. Reload the page and try again.`);
    const lines = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await lines.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const line of parts) if (line.startsWith("data:") && this.event(line.slice(5).trim())) return;
    }
    throw new Error("The stream ended before the answer did.");
  }

  event(data) {
    if (data === "[DONE]") {
      this.finish({ stop: "The model finished", length: "At the most tokens" }[this.reason] ?? "Finished");
      return true;
    }
    const message = JSON.parse(data);
    if (message.error) throw new Error(message.error.message);
    if (message.request_id) this.showWho(message);
    if (message.usage) this.showUsage(message.usage);
    const choice = message.choices?.[0];
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    if (choice?.delta?.content) {
      this.last = performance.now();
      this.first ??= this.last;
      this.count += 1;
      this.answer.append(choice.delta.content);
      this.show();
    }
    return false;
  }

  showWho({ request_id, version_id, replica_id }) {
    $("#request-id").textContent = request_id;
    $("#version").textContent = this.versions[version_id] || version_id || "–";
    $("#replica").textContent = replica_id || "–";
  }

  showUsage({ prompt_tokens, completion_tokens }) {
    this.count = completion_tokens;
    const dollars = this.prices && (prompt_tokens * this.prices[0] + completion_tokens * this.prices[1]) / 1e12;
    $("#cost").textContent = dollars === null ? "no price set" : !dollars ? "$0" : dollars < 0.0001 ? "<$0.0001" : `$${dollars.toFixed(4)}`;
    this.show();
  }

  show() {
    $("#tokens").textContent = this.count.toLocaleString("en");
    if (!this.first) return;
    $("#ttft").textContent = `${Math.round(this.first - this.began).toLocaleString("en")} ms`;
    if (this.last > this.first) $("#rate").textContent = ((this.count - 1) * 1000 / (this.last - this.first)).toFixed(1);
  }

  finish(words, problem) {
    this.answer.setAttribute("aria-busy", "false");
    $("#ended").textContent = words;
    $("#finished").textContent = problem ?? `Answer finished: ${this.count} tokens. ${words}.`;
    if (!problem) return;
    const note = document.createElement("div");
    note.className = "note bad";
    note.textContent = problem;
    this.answer.append(note);
  }
}

addEventListener("DOMContentLoaded", () => {
  schedulePoll();
  const root = $("#playground");
  if (root) new Playground(root);
});
