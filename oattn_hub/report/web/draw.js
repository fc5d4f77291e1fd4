"use strict";
// What every drawing of the page is made with: SVG elements, scales, axes, colours and the one tooltip.

const element = (id) => document.getElementById(id);
const short = (value) => (Math.abs(value) < 1e-12 ? "0" : Number(value.toPrecision(3)).toString());
const shorter = (value) => (value && Math.abs(value) < 1e-3 ? value.toExponential(0) : Number(value.toPrecision(2)).toString());
const themeColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** An empty drawing as wide as its place: {root, width, height, inner} with the inner box after the margins. */
function stage(id, height, margin, label) {
  const place = element(id), width = Math.max(200, place.clientWidth);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  place.replaceChildren(root);
  const inner = { left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
  return { root, width, height, inner };
}

// ---------------------------------------------------------------- scales

function linear([d0, d1], [r0, r1]) {
  const step = (r1 - r0) / (d1 - d0 || 1), scale = (value) => r0 + (value - d0) * step;
  scale.ticks = (count) => niceTicks(d0, d1, count);
  return scale;
}

function logarithmic([d0, d1], range) {
  const inner = linear([Math.log10(d0), Math.log10(d1)], range);
  const scale = (value) => inner(Math.log10(Math.max(value, d0)));
  scale.ticks = () => {
    const found = [];
    for (let power = Math.ceil(Math.log10(d0) - 1e-9); power <= Math.log10(d1) + 1e-9; power++) found.push(10 ** power);
    return found;
  };
  return scale;
}

function niceTicks(low, high, count = 5) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((candidate) => candidate >= rough * 0.999);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) found.push(Number(tick.toPrecision(12)));
  return found;
}

function axes({ root, inner }, x, y, { xTitle = "", yTitle = "", xTicks = x.ticks?.(6) ?? [], yTicks = y.ticks?.(5) ?? [], text = short } = {}) {
  const group = svg("g", { class: "axes" });
  for (const tick of yTicks) {
    group.append(svg("line", { x1: inner.left, x2: inner.right, y1: y(tick), y2: y(tick), class: "grid" }));
    group.append(svg("text", { x: inner.left - 6, y: y(tick) + 4, "text-anchor": "end" }, text(tick)));
  }
  for (const tick of xTicks) group.append(svg("text", { x: x(tick), y: inner.bottom + 16, "text-anchor": "middle" }, short(tick)));
  group.append(svg("line", { x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom, class: "axis" }));
  if (xTitle) group.append(svg("text", { x: (inner.left + inner.right) / 2, y: inner.bottom + 32, "text-anchor": "middle", class: "title" }, xTitle));
  if (yTitle) group.append(svg("text", { x: inner.left - 34, y: inner.top - 8, class: "title" }, yTitle));
  root.append(group);
}

const pathOf = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

// ---------------------------------------------------------------- colours

/** The colour of 0 … 1 on a scale of equally spaced [r, g, b]. */
function ramp(stops) {
  return (share) => {
    const place = Math.min(1, Math.max(0, share)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(place));
    return stops[i].map((from, c) => Math.round(from + (stops[i + 1][c] - from) * (place - i)));
  };
}
const css = ([r, g, b]) => `rgb(${r},${g},${b})`;

function colourBar(root, x, top, height, colour, low, high, title) {
  const steps = 32;
  for (let i = 0; i < steps; i++) {
    const y = top + height * (1 - (i + 1) / steps);
    root.append(svg("rect", { x, y, width: 10, height: height / steps + 0.6, fill: css(colour((i + 0.5) / steps)) }));
  }
  root.append(svg("text", { x: x + 14, y: top + 9 }, shorter(high)), svg("text", { x: x + 14, y: top + height }, shorter(low)));
  // beside the two numbers where it does not fit between them
  const middle = top + height / 2, right = x + (height < 6 * title.length + 30 ? 52 : 22);
  root.append(svg("text", { x: right, y: middle, "text-anchor": "middle", transform: `rotate(90 ${right} ${middle})`, class: "title" }, title));
}

// ---------------------------------------------------------------- the tooltip

function showTip(event, lines) {
  const box = element("tip");
  if (!lines) { box.hidden = true; return; }
  box.replaceChildren(...lines.map((line) => html("div", {}, line)));
  box.hidden = false;
  const { clientX: x, clientY: y } = event, { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  box.style.top = `${y + 18 + height > innerHeight ? y - height - 10 : y + 18}px`;
}

/** Tooltip and click on every part of a drawing that carries data-head. */
function headsOf(root, say) {
  const at = (event) => event.target.closest?.("[data-head]")?.dataset.head;
  root.addEventListener("pointermove", (event) => { const key = at(event); showTip(event, key ? say(key) : null); });
  root.addEventListener("pointerleave", (event) => showTip(event, null));
  root.addEventListener("click", (event) => { const key = at(event); if (key) go(key); });
}

/** A canvas with sharp pixels of its own size. */
function canvas(width, height, className = "") {
  const made = html("canvas", { class: className }), density = window.devicePixelRatio || 1;
  made.width = Math.round(width * density);
  made.height = Math.round(height * density);
  made.style.width = `${width}px`;
  made.style.height = `${height}px`;
  const pen = made.getContext("2d");
  pen.scale(density, density);
  return { made, pen };
}
