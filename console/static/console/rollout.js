// Both versions of a rollout over time, drawn from the table below: a chart a measure, all over the same times.
"use strict";

const PLOT_HEIGHT = 150;
const ARMS = [["Stable", ".legend .fill-2", [6, 4]], ["Candidate", ".legend .fill-1", undefined]];
const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");
const [clock, second, minute] = ["{HH}:{mm}:{ss} UTC", "{HH}:{mm}:{ss}", "{HH}:{mm}"].map((form) => uPlot.fmtDate(form));
const marks = (ticks) => ticks.map((tick) => (ticks[1] - ticks[0] < 60 ? second : minute)(utc(tick)));
const sized = (value, unit) => value == null ? "no data" : `${value >= 100 ? Math.round(value).toLocaleString("en") : +value.toPrecision(3)} ${unit}`.trim();

class Chart {
  constructor(host, label, unit, data) {
    this.label = label;
    this.unit = unit;
    const figure = host.appendChild(document.createElement("figure"));
    const [caption, picture, readout] = ["figcaption", "div", "p"].map((tag) => figure.appendChild(document.createElement(tag)));
    caption.className = "label";
    caption.textContent = unit ? `${label}, ${unit}` : label;
    readout.className = "hint num";
    Object.assign(this, { picture, readout });
    this.picture.setAttribute("role", "img");
    const style = getComputedStyle(readout);
    const axis = { stroke: () => style.color, font: `12px ${style.fontFamily}`, grid: { stroke: () => getComputedStyle($(".meter .fill-0")).fill, width: 1 }, ticks: { show: false } };
    this.plot = new uPlot({
      width: this.width, height: PLOT_HEIGHT, tzDate: utc, legend: { show: false },
      cursor: { sync: { key: "rollout" }, y: false, drag: { x: false }, points: { size: 7 } },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, space: 70, size: 28, values: (_, ticks) => marks(ticks) }, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => sized(tick, "")) }],
      series: [{}, ...ARMS.map(([name, swatch, dash]) => {
        const colour = () => getComputedStyle($(swatch)).fill;
        return { label: name, stroke: colour, width: 2, dash, points: { show: true, size: 4, stroke: colour, fill: colour } };
      })],
      hooks: { setCursor: [() => this.read()] },
    }, data, this.picture);
    this.read();
    new ResizeObserver(() => this.plot.setSize({ width: this.width, height: PLOT_HEIGHT })).observe(host);
  }

  get width() { return this.picture.clientWidth || 300; }

  update(data) { this.plot.setData(data); this.read(); }

  // Says what is under the pointer, else the last that is known.
  read() {
    if (!this.plot) return;
    const [times, ...lines] = this.plot.data;
    const last = times.findLastIndex((_, index) => lines.some((line) => line[index] != null));
    const index = this.plot.cursor.idx ?? last;
    const words = index < 0 ? "No data" : `${clock(utc(times[index]))}: ${ARMS.map(([name], arm) => `${name.toLowerCase()} ${sized(lines[arm][index], this.unit)}`).join(", ")}`;
    this.readout.textContent = words;
    this.picture.setAttribute("aria-label", `${this.label}. ${words}. The table has every number.`);
  }
}

function measured(table) {
  const rows = all("tbody tr", table);
  const times = rows.map((row) => Number(row.dataset.x));
  const line = (column) => rows.map(({ cells }) => cells[column]?.dataset.v ? Number(cells[column].dataset.v) : null);
  return all("th[data-unit]", table).map((head, number) => [
    head.textContent, head.dataset.unit, [times, line(1 + 2 * number), line(2 + 2 * number)],
  ]);
}

// What is said aloud is said once, however often the page asks.
document.addEventListener("htmx:oobBeforeSwap", ({ detail }) => {
  if (detail.target.textContent === detail.fragment.textContent) detail.shouldSwap = false;
});

let charts = [];

function draw() {
  const table = $("#series"), host = $("#plots");
  if (!table || !host) return;
  if (!host.firstChild) charts = [];
  measured(table).forEach(([label, unit, data], number) => {
    if (charts[number]) charts[number].update(data); else charts.push(new Chart(host, label, unit, data));
  });
}

addEventListener("DOMContentLoaded", draw);
document.addEventListener("htmx:afterSettle", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(({ plot }) => plot.redraw()));
