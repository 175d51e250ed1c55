// Uploads a folder in parts: { file, number, blob, sha256 (as arrived), sent (bytes) }. The server knows what it has.
"use strict";
{
const LANES = 3, WAIT_MS = 500, LONGEST_WAIT_MS = 20000, SPEED_OVER_MS = 10000, MOST_REFUSALS = 8, COME_AGAIN = [0, 408, 429, 503];
const page = $("#upload").dataset, rules = JSON.parse($("#rules").textContent), taken = RegExp(rules.taken);
const hasher = new Worker(page.worker);
const go = $("#go"), total = $("#total");
let { version } = page, handles = [], files = [], run, waiting = 0, moved = 0;

const say = (text) => { if ($("#say").textContent !== text) $("#say").textContent = text; };
const size = (bytes) => bytes < 1e6 ? `${Math.ceil(bytes / 1024)} KiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
const span = (seconds) => seconds < 90 ? `${Math.ceil(seconds)} s` : `${Math.round(seconds / 60)} min`;
const failure = (message, status) => Object.assign(new Error(message), { status });
const bytesOf = (list) => list.reduce((sum, file) => sum + file.size, 0);

// --- What was chosen

const refusal = ({ path, size }) => taken.test(path) ? (size ? "" : "It is empty.") : rules.refusals.find(([form]) => RegExp(form, "i").test(path))[1];

async function choose(found) {
  files = [...found].map((file) => ({ file, path: (file.webkitRelativePath || file.name).replace(/^[^/]*\/(?=.)/, ""), size: file.size }));
  for (const file of files) file.refusal = refusal(file);
  const good = files.filter((file) => !file.refusal), lacking = rules.needed.filter(([form]) => !good.some(({ path }) => RegExp(form).test(path)));
  $("#rows").replaceChildren(...files.sort((a, b) => !a.refusal - !b.refusal || (a.path < b.path ? -1 : 1)).map(row));
  const refused = files.length - good.length;
  $("#plan").hidden = false;
  go.hidden = lacking.length > 0;
  go.textContent = `Upload ${good.length} files, ${size(bytesOf(good))}`;
  say(lacking.length ? `This is missing: ${lacking.map(([, words]) => words).join(", ")}.` : refused ? `${refused} of ${files.length} files are refused and stay here.` : `All ${files.length} files can be uploaded.`);
  files = good;
  if (version) start(); else go.focus();
}

function row(file) {
  const tr = $("#row").content.cloneNode(true).firstElementChild, [name, bytes, state] = tr.children;
  name.textContent = file.path;
  bytes.textContent = size(file.size);
  file.bar = $("progress", state);
  file.bar.max = file.size || 1;
  file.bar.setAttribute("aria-label", file.path);
  if (file.refusal) state.textContent = file.refusal;
  return tr;
}

async function read(from) {
  const found = [];
  for (const handle of from) {
    if (handle.kind === "file") found.push(await handle.getFile());
    else for await (const inner of handle.values()) found.push(inner.kind === "file" ? await inner.getFile() : { name: `${inner.name}/`, size: 0 });
  }
  handles = from;
  return choose(found);
}

async function pick(folder) {
  if (folder ? window.showDirectoryPicker : window.showOpenFilePicker) {
    await read(folder ? [await showDirectoryPicker()] : await showOpenFilePicker({ multiple: true })).catch(() => {});
  } else {
    $("#pick").webkitdirectory = folder;
    $("#pick").click();
  }
}

async function entered(entry) {
  if (entry.isFile) return new Promise((done, failed) => entry.file(done, failed));
  const reader = entry.createReader(), found = [];
  for (let some; (some = await new Promise((done, failed) => reader.readEntries(done, failed))).length;) found.push(...some);
  return Promise.all(found.map((each) => each.isFile ? entered(each) : { name: `${each.name}/`, size: 0 }));
}

async function drop({ items, files: dropped }) {
  const kept = [...items], entries = kept.map((item) => item.webkitGetAsEntry?.());
  const remembered = (await Promise.all(kept.map((item) => item.getAsFileSystemHandle?.()))).filter(Boolean);
  if (remembered.length) return read(remembered);
  return choose(entries[0] ? (await Promise.all(entries.map(entered))).flat() : dropped);
}

// --- What the browser remembers: the handles of the files, where it has such

async function remember(act, ...values) {
  const asked = (request) => new Promise((done, failed) => { request.onsuccess = () => done(request.result); request.onerror = failed; });
  const opening = indexedDB.open("uploads");
  opening.onupgradeneeded = () => opening.result.createObjectStore("handles");
  return asked((await asked(opening)).transaction("handles", "readwrite").objectStore("handles")[act](...values));
}

// --- What is sent

async function call(path, body) {
  const answer = await fetch(`/api/v1/${path}?tenant=${page.tenant}`, {
    method: body ? "POST" : "GET", body: body && JSON.stringify(body), signal: run.signal,
    headers: { "Content-Type": "application/json", "X-CSRFToken": page.csrf },
  }).catch(() => { throw failure("The console cannot be reached.", 0); });
  if (answer.status === 401) location.reload();
  const said = await answer.json();
  if (!answer.ok) throw failure(said.error.message, answer.status);
  return said;
}

// Status of a failure: 0 where nobody answered, negative where the store refused a part.
const put = (part, { method, url, headers }) => new Promise((done, failed) => {
  const request = new XMLHttpRequest(), stop = () => request.abort();
  request.open(method, url);
  for (const header of Object.entries(headers)) request.setRequestHeader(...header);
  request.upload.onprogress = ({ loaded }) => { moved += loaded - part.sent; part.sent = loaded; };
  request.onloadend = () => {
    run?.signal.removeEventListener("abort", stop);
    if (request.status === 200) done(); else failed(failure(`The store refused a part (${request.status}).`, -request.status));
  };
  run.signal.addEventListener("abort", stop);
  request.send(part.blob);
});

const isFinal = ({ status = 0 }, tries) => !COME_AGAIN.includes(Math.abs(status)) && (status === -507 || (status < 0 && tries > MOST_REFUSALS) || (status >= 400 && status < 500));

// Tries until it is done, with growing pauses of random length that end when the network is back.
async function patiently(signal, act) {
  for (let tries = 0; ; tries += 1) {
    signal.throwIfAborted();
    try {
      return await act();
    } catch (error) {
      if (signal.aborted || isFinal(error, tries)) throw error;
      waiting += 1;
      await new Promise((done) => {
        for (const [target, event] of [[window, "online"], [signal, "abort"]]) target.addEventListener(event, done, { once: true });
        setTimeout(done, Math.min(WAIT_MS * 2 ** tries, LONGEST_WAIT_MS) * (0.5 + Math.random()));
      });
      waiting -= 1;
    }
  }
}

async function send(signal, part) {
  const { file: { name }, number, blob } = part, digest = new MessageChannel();
  hasher.postMessage(blob, [digest.port2]);
  const sha256 = await new Promise((done) => { digest.port1.onmessage = ({ data }) => done(data); });
  if (!sha256) throw failure(`${name} cannot be read any more. Choose the folder again.`, 400);
  if (part.sha256 !== sha256) await patiently(signal, async () => {
    part.sent = 0;
    await put(part, await call(`uploads/${version}/parts`, { file: name, number, size_bytes: blob.size, sha256 }));
  });
  part.sha256 = sha256;
  part.sent = blob.size;
}

async function begin() {
  const body = { files: files.map(({ path, size }) => ({ name: path, size_bytes: size })) };
  if ($("#derived-from")?.value) Object.assign(body, { derived_from: $("#derived-from").value, derivation: $("#derivation").value });
  ({ version_id: version } = await call(`models/${encodeURIComponent($("#model").value)}/uploads`, body));
  history.replaceState(null, "", `${page.base}uploads/${version}`);
  if (handles.length) await remember("put", handles, version).catch(() => {});
}

// The parts of the upload as the server has them, cut from the files that were chosen here.
async function parts(signal) {
  const upload = await patiently(signal, () => call(`uploads/${version}`));
  return upload.files.flatMap(({ name, size_bytes, parts: count, arrived }) => {
    const chosen = files.find(({ path }) => path === name);
    if (chosen?.size !== size_bytes) throw failure(`${name} ${chosen ? "has another size" : "is missing"} here. Choose the folder that the upload was begun with.`, 400);
    const there = new Map(arrived.map((part) => [part.number, part.sha256]));
    return chosen.parts = Array.from({ length: count }, (_, index) => ({
      file: { name }, number: index + 1, sha256: there.get(index + 1), sent: 0,
      blob: chosen.file.slice(index * upload.part_bytes, (index + 1) * upload.part_bytes),
    }));
  });
}

// The upload has ended, here or unheard: the version's page tells how.
async function leave() {
  await remember("delete", version).catch(() => {});
  location.assign(`${page.base}versions/${version}`);
}

async function start() {
  run = new AbortController();
  const { signal } = run;
  moved = 0;
  go.textContent = "Pause";
  $("#choose").hidden = true;
  const clock = setInterval(show, 250, [], 0);
  try {
    if (!version) await begin();
    const rest = await parts(signal);
    say("Uploading.");
    await Promise.all(Array.from({ length: LANES }, async () => { for (let part; (part = rest.shift());) await send(signal, part); }));
    await patiently(signal, () => call(`uploads/${version}/complete`, {}));
    await leave();
  } catch (error) {
    if (version && error.status === 409) await leave();
    say(signal.aborted ? "Paused. What has arrived stays." : error.message);
    run.abort();
    go.textContent = "Resume";
    $("#choose").hidden = Boolean(version) && error.status !== 400;
  }
  clearInterval(clock);
  run = undefined;
}

function show(samples) {
  let sent = 0;
  for (const { bar, parts = [] } of files) sent += bar.value = parts.reduce((sum, part) => sum + part.sent, 0);
  total.max = bytesOf(files);
  total.value = sent;
  const now = performance.now();
  samples.push([now, moved]);
  if (now - samples[0][0] > SPEED_OVER_MS) samples.shift();
  const speed = (moved - samples[0][1]) / (now - samples[0][0]) * 1000;
  $("#speed").textContent = `${size(sent)} of ${size(total.max)}${speed > 0 ? `, ${size(speed)}/s, ${span((total.max - sent) / speed)} left` : ""}`;
  say(waiting ? "Connection lost, trying again." : "Uploading.");
}

// --- What people do

$("#folder").addEventListener("click", () => pick(true));
$("#files").addEventListener("click", () => pick(false));
$("#pick").addEventListener("change", ({ target }) => { handles = []; choose(target.files); });
go.addEventListener("click", () => { if (run) run.abort(); else start(); });
$("#upload").addEventListener("dragover", (event) => event.preventDefault());
$("#upload").addEventListener("drop", (event) => { event.preventDefault(); if (!run) drop(event.dataTransfer); });

// After a reload: go on with the handles that were kept; the browser may want a click for that.
if (version) remember("get", version).then(async (kept) => {
  if (!kept) return;
  $("#again").hidden = false;
  $("#again").addEventListener("click", async () => {
    for (const handle of kept) await handle.requestPermission?.();
    read(kept).catch(() => notify("The browser may not read these files. Choose the folder again."));
  });
  if ((await Promise.all(kept.map((handle) => handle.queryPermission?.() ?? "granted"))).every((state) => state === "granted")) read(kept);
});
}
