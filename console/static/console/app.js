// The script of every page: copying, polling, notices. No dependency but htmx, which it only wakes.
"use strict";

const POLL_ACTIVE_MS = 3000;
const POLL_HIDDEN_MS = 60000;
const $ = (selector, within = document) => within.querySelector(selector);
const all = (selector, within) => [...within.querySelectorAll(selector)];

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

// --- Live parts ask again: often while they are looked at, else seldom

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

// --- What a swap must not move: the focus, what was unfolded, and tables that were scrolled sideways

const FOCUSABLE = "a[href], button, input, select, textarea, [tabindex]";
const STATEFUL = "details, .table-wrap";
const likeness = (each) => [each.tagName, each.getAttribute("href"), each.getAttribute("aria-label") ?? each.textContent].join();
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
    states: all(STATEFUL, part).map(({ open, scrollLeft }) => ({ open, scrollLeft })),
  };
});

document.addEventListener("htmx:afterSwap", ({ detail: { target: part } }) => {
  if (!kept) return part.id === "main" && ($("[aria-invalid=true]") ?? $("[autofocus]") ?? $("#main"))?.focus();
  all(FOCUSABLE, part).find((each) => likeness(each) === kept.focused)?.focus({ preventScroll: true });
  all(STATEFUL, part).forEach((each, index) => Object.assign(each, kept.states[index]));
});

// --- Notices: what failed behind the page, with its id in our log

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

addEventListener("DOMContentLoaded", schedulePoll);
