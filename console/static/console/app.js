// The console's one script: copying, polling, toasts and the playground. No dependency but htmx, which it only wakes.
"use strict";

const POLL_ACTIVE_MS = 3000;
const POLL_HIDDEN_MS = 60000;
const $ = (selector) => document.querySelector(selector);

// --- Copy buttons

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const words = button.textContent;
  try {
    await navigator.clipboard.writeText($(button.dataset.copy).textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren($(button.dataset.copy));
    button.textContent = "Press Ctrl+C";
  }
  setTimeout(() => { button.textContent = words; }, 2000);
});

// --- Live parts ask again: often while they are looked at, seldom while they are not

function poll() {
  for (const part of document.querySelectorAll("[data-poll]")) {
    if (!part.contains(document.activeElement) || document.activeElement === document.body) htmx.trigger(part, "poll");
  }
  schedulePoll();
}

let pollTimer;
function schedulePoll() {
  clearTimeout(pollTimer);
  if ($("[data-poll]")) pollTimer = setTimeout(poll, document.hidden ? POLL_HIDDEN_MS : POLL_ACTIVE_MS);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(pollTimer);
  if (document.hidden) schedulePoll(); else poll();
});

// --- On a phone the menu starts closed

const phone = matchMedia("(max-width: 56rem)");
function placeMenu() {
  const menu = $(".menu");
  if (menu) menu.open = !phone.matches;
}
phone.addEventListener("change", placeMenu);

// --- The playground

class Playground {
  constructor(root) {
    this.root = root;
    this.form = $("#prompt-form");
    this.answer = $("#answer");
    this.language = "curl";
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    $("#stop").addEventListener("click", () => this.stop());
    document.addEventListener("input", () => this.showSnippet());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.send(); }
      if (event.key === "Escape") this.stop();
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
    const body = JSON.parse(JSON.stringify(this.body()));
    const url = this.root.dataset.gateway;
    const json = JSON.stringify(body, null, 2);
    const python = json.replace(/: true/g, ": True").replace(/^/gm, "    ").trim();
    $("#snippet-text").textContent = {
      curl: `curl -N ${url}/chat/completions \\\n  -H "Authorization: Bearer $PAGODA_API_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${json.replaceAll("'", "'\\''")}'`,
      python: `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${url}", api_key=os.environ["PAGODA_API_KEY"])\nfor chunk in client.chat.completions.create(**${python}):\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)`,
      javascript: `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${url}", apiKey: process.env.PAGODA_API_KEY });\nconst stream = await client.chat.completions.create(${json});\nfor await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");`,
    }[this.language];
  }

  stop() { this.call?.abort(); }

  async send() {
    if (this.call || !$("#prompt").value.trim()) return;
    this.call = new AbortController();
    this.begin();
    try {
      await this.read(await this.open());
    } catch (error) {
      this.finish(error.name === "AbortError" ? "Stopped" : "Failed", error.name === "AbortError" ? "" : error.message);
    }
    this.call = undefined;
    $("#send").disabled = false;
    $("#stop").hidden = true;
  }

  begin() {
    this.began = performance.now();
    this.first = undefined;
    this.count = 0;
    this.reason = undefined;
    this.answer.textContent = "";
    this.answer.setAttribute("aria-busy", "true");
    for (const id of ["ttft", "rate", "tokens", "ended"]) $(`#${id}`).textContent = "–";
    $("#request-id").textContent = $("#finished").textContent = "";
    $("#send").disabled = true;
    $("#stop").hidden = false;
  }

  open() {
    return fetch(this.root.dataset.stream, {
      method: "POST",
      body: JSON.stringify({ ...this.body(), stream_options: { include_usage: true } }),
      headers: { "Content-Type": "application/json", "X-CSRFToken": this.form.csrfmiddlewaretoken.value },
      signal: this.call.signal,
    });
  }

  async read(response) {
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
    if (data === "[DONE]") { this.finish(this.reason === "length" ? "Length" : "Stop", ""); return true; }
    const message = JSON.parse(data);
    if (message.error) throw new Error(message.error.message);
    if (message.request_id) $("#request-id").textContent = `Request ${message.request_id}`;
    if (message.usage) { this.count = message.usage.completion_tokens; this.show(); }
    const choice = message.choices?.[0];
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    if (choice?.delta?.content) {
      this.first ??= performance.now();
      this.count += 1;
      this.answer.append(choice.delta.content);
      this.show();
    }
    return false;
  }

  show() {
    const seconds = (performance.now() - this.first) / 1000;
    $("#ttft").textContent = `${Math.round(this.first - this.began).toLocaleString("en")} ms`;
    $("#tokens").textContent = this.count.toLocaleString("en");
    if (this.count > 1 && seconds > 0) $("#rate").textContent = ((this.count - 1) / seconds).toFixed(1);
  }

  finish(words, problem) {
    this.answer.setAttribute("aria-busy", "false");
    $("#ended").textContent = words;
    $("#finished").textContent = problem || `${words}: ${this.count} tokens.`;
    if (!problem) return;
    const note = document.createElement("div");
    note.className = "note bad";
    note.textContent = problem;
    this.answer.append(note);
  }
}

addEventListener("DOMContentLoaded", () => {
  placeMenu();
  schedulePoll();
  const root = $("#playground");
  if (root) new Playground(root);
});
