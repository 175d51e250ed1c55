// The playground: a form whose answer appears token by token, with what it took.
"use strict";

const pythonOf = (value) => Array.isArray(value)
  ? `[\n${value.map((message) => `        {"role": ${JSON.stringify(message.role)}, "content": ${JSON.stringify(message.content)}},\n`).join("")}    ]`
  : value === true ? "True" : JSON.stringify(value);
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

class Playground {
  constructor(root) {
    this.root = root;
    this.form = $("#prompt-form");
    this.answer = $("#answer");
    this.versions = JSON.parse(root.dataset.versions);
    this.outcomes = JSON.parse(root.dataset.outcomes);
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
    const body = this.body();
    const json = JSON.stringify(body, null, 2);
    const python = Object.entries(body).filter(([, value]) => value !== undefined).map(([name, value]) => `    ${name}=${pythonOf(value)},\n`).join("");
    $("#snippet-text").textContent = {
      curl: `curl -N ${url}/chat/completions \\\n  -H "Authorization: Bearer $PAGODA_API_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${json.replaceAll("'", "'\\''")}'`,
      python: `import os\nfrom openai import OpenAI\n\nclient = OpenAI(\n    base_url="${url}",\n    api_key=os.environ["PAGODA_API_KEY"],\n)\nstream = client.chat.completions.create(\n${python})\nfor chunk in stream:\n    if chunk.choices:\n        text = chunk.choices[0].delta.content\n        print(text or "", end="", flush=True)`,
      javascript: `import OpenAI from "openai";\n\nconst client = new OpenAI({\n  baseURL: "${url}",\n  apiKey: process.env.PAGODA_API_KEY,\n});\nconst stream = await client.chat.completions.create(${json});\nfor await (const chunk of stream) {\n  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");\n}`,
    }[this.language];
  }

  async send() {
    if (!$("#prompt").value.trim()) { $("#prompt").focus(); return; }
    this.call = new AbortController();
    this.begin();
    try {
      await this.read(await this.open());
    } catch (error) {
      if (error.name === "AbortError") this.finish("aborted");
      else this.finish(this.isRefused ? "refused" : "failed", sentence(error.message));
    }
    this.call = undefined;
    this.setButton("Send");
  }

  begin() {
    this.began = performance.now();
    this.first = this.reason = this.isRefused = undefined;
    this.count = 0;
    const option = $("#model").selectedOptions[0];
    this.prices = option.dataset.input === undefined ? null : [Number(option.dataset.input), Number(option.dataset.output)];
    this.answer.replaceChildren(Object.assign(document.createElement("span"), {
      className: "muted", textContent: option.dataset.wait ?? "Waiting for the first token.",
    }));
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
      this.finish(this.reason in this.outcomes ? this.reason : "stop");
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
      if (!this.first) this.answer.textContent = "";
      this.first ??= this.last;
      this.count += 1;
      this.answer.append(choice.delta.content);
      this.show();
    }
    return false;
  }

  showWho({ request_id, version_id, replica_id, is_refused }) {
    this.isRefused = is_refused;
    const link = $("#request-id");
    link.textContent = request_id;
    link.href = link.dataset.find + request_id;
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

  finish(outcome, problem) {
    const words = this.outcomes[outcome];
    this.answer.setAttribute("aria-busy", "false");
    if (!this.first) this.answer.textContent = "";
    $("#ended").textContent = words;
    $("#finished").textContent = problem ?? `Answer finished: ${this.count} tokens. ${words}.`;
    if (!problem) return;
    const note = document.createElement("div");
    note.className = "note bad";
    note.textContent = problem;
    this.answer.append(note);
  }
}

if ($("#playground")) new Playground($("#playground"));
