"use strict";
// The page's behaviour. One path for every choice: something sets location.hash to "layer-head", and `show` redraws.
// Plotly draws; this file only says what. Arrays come deflated and base64-coded, see page.py.

const page = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const quiet = { displayModeBar: false, responsive: true };
const TYPES = { uint8: Uint8Array, uint16: Uint16Array, int32: Int32Array, float32: Float32Array };
const state = { group: null, head: null, sort: { column: "rank", down: false } };

async function unpack({ dtype, shape, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const values = new TYPES[dtype](await new Response(stream).arrayBuffer());
  const width = values.length / shape[0];
  return { values, shape, row: (i) => values.subarray(i * width, (i + 1) * width) };
}

async function openGroups() {
  for (const group of page.groups) {
    for (const [name, packed] of Object.entries(group.arrays)) group[name] = await unpack(packed);
    group.size = group.layers.values.length;
    group.key = (i) => `${group.layers.values[i]}-${group.heads.values[i]}`;
    group.label = (i) => `layer ${group.layers.values[i]}, head ${group.heads.values[i]}`;
    group.index = new Map(Array.from({ length: group.size }, (_, i) => [group.key(i), i]));
    group.byRank = [...group.index.values()].sort((a, b) => group.rank.values[a] - group.rank.values[b]);
    group.layerList = [...new Set(group.layers.values)];
  }
}

// ---------------------------------------------------------------- look

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axis(extra = {}) {
  const line = colour("--line");
  return { color: colour("--soft"), gridcolor: line, linecolor: line, zeroline: false, fixedrange: true, ...extra };
}

function look(extra = {}) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, dragmode: false,
    font: { color: colour("--text"), size: 12, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    margin: { l: 44, r: 10, t: 6, b: 36 }, ...extra,
  };
}

function bar(text) {
  const font = { color: colour("--soft") };
  return { thickness: 10, outlinewidth: 0, tickfont: font, title: { text, side: "right", font } };
}

const short = (value) => Number(value.toPrecision(4)).toString();

function onPick(id, headOf) {
  element(id).on("plotly_click", (event) => {
    const index = headOf(event.points[0]);
    if (index !== undefined && index !== null) go(state.group.key(index));
  });
}

// ---------------------------------------------------------------- what one head looks like

function drawMap(group) {
  const rows = group.layerList, columns = Math.max(...group.heads.values) + 1;
  const z = rows.map(() => Array(columns).fill(null)), low = { x: [], y: [] };
  for (let i = 0; i < group.size; i++) {
    const row = rows.indexOf(group.layers.values[i]);
    z[row][group.heads.values[i]] = group.entropy.values[i];
    if (group.bottom.values[i] === group.batches) { low.x.push(group.heads.values[i]); low.y.push(row); }
  }
  const ticks = rows.map((layer, row) => row).filter((row) => row % Math.ceil(rows.length / 24) === 0);
  const traces = [
    {
      type: "heatmap", z, colorscale: page.scales.entropy, xgap: 1, ygap: 1, colorbar: bar("entropy"), hoverongaps: false,
      text: z.map((_, row) => Array(columns).fill(rows[row])),
      hovertemplate: "layer %{text}, head %{x}<br>entropy %{z:.4g}<extra></extra>",
    },
    {
      type: "scatter", mode: "markers", x: low.x, y: low.y, hoverinfo: "skip",
      marker: { color: "#fff", size: 6, line: { color: "#000", width: 1 } },
    },
  ];
  element("map").style.minHeight = `${Math.min(620, Math.max(240, 80 + 26 * rows.length))}px`;
  const layout = look({
    xaxis: axis({ title: { text: "head" }, showgrid: false, range: [-0.5, columns - 0.5], dtick: Math.ceil(columns / 16) }),
    yaxis: axis({
      title: { text: "layer" }, showgrid: false, range: [rows.length - 0.5, -0.5],
      tickvals: ticks, ticktext: ticks.map((row) => rows[row]),
    }),
  });
  Plotly.react("map", traces, layout, quiet);
}

function markMap(group, head) {
  const row = group.layerList.indexOf(group.layers.values[head]), column = group.heads.values[head];
  const box = { x0: column - 0.5, x1: column + 0.5, y0: row - 0.5, y1: row + 0.5 };
  Plotly.relayout("map", { shapes: [{ type: "rect", ...box, line: { color: colour("--mark"), width: 3 } }] });
}

function drawAttention(id, group, codes, head) {
  const [, rows, columns] = codes.shape, values = codes.row(head);
  const low = group.low.values[head], step = (group.high.values[head] - low) / 254;
  const value = (code) => (code ? low + (code - 1) * step : null); // code 0 is a masked entry
  const z = Array.from({ length: rows }, (_, r) => Array.from(values.subarray(r * columns, (r + 1) * columns), value));
  const real = page.kind === "probs" ? z.map((line) => line.map((root) => (root === null ? null : root * root))) : z;
  const trace = {
    type: "heatmap", z, text: real, colorscale: page.scales.matrix, showscale: false, hoverongaps: false,
    hovertemplate: `query block %{y}, key block %{x}<br>${page.kind} %{text:.3g}<extra></extra>`,
  };
  const bare = { visible: false, fixedrange: true }, margin = { l: 0, r: 0, t: 0, b: 0 };
  const layout = look({ margin, plot_bgcolor: colour("--missing"), xaxis: bare, yaxis: { ...bare, autorange: "reversed" } });
  Plotly.react(id, [trace], layout, quiet);
}

function drawFacts(group, head) {
  const number = (name) => short(group[name].values[head]);
  const interval = (name) => `${number(name)} <small>(${number(name + "Low")} – ${number(name + "High")})</small>`;
  const link = (i) => `<a href="#${group.key(i)}">${group.key(i).replace("-", ".")}</a>`;
  const facts = [
    ["entropy, 95 % interval", interval("entropy")],
    [`rank of ${group.size}, 95 % interval`, interval("rank")],
    [`in the lowest ${page.percent} %`, `${group.bottom.values[head]} of ${group.batches} batches`],
    [`in the highest ${page.percent} %`, `${group.top.values[head]} of ${group.batches} batches`],
    ["tree folder", `${group.folder.values[head]}`],
    ["nearest heads", nearest(group, head).map(link).join(", ")],
  ];
  element("facts").innerHTML = facts.map(([name, value]) => `<div><dt>${name}</dt><dd>${value}</dd></div>`).join("");
  element("picked-title").innerHTML = "";
  const title = document.createElement("span"), place = document.createElement("small");
  title.textContent = group.label(head).replace("l", "L");
  place.textContent = group.layerNames[head];
  element("picked-title").append(title, place);
}

function nearest(group, head, count = 5) {
  const row = group.affinity.row(head);
  return group.byRank.filter((i) => i !== head).sort((a, b) => row[b] - row[a]).slice(0, count);
}

function drawBatches(group, head) {
  const x = Array.from({ length: group.batches }, (_, batch) => batch);
  const deciles = x.map((batch) => {
    const sorted = Array.from(group.entropies.row(batch)).sort((a, b) => a - b);
    return [0.1, 0.5, 0.9].map((q) => sorted[Math.round(q * (sorted.length - 1))]);
  });
  const faint = ["dot", "solid", "dot"].map((dash, i) => ({
    x, y: deciles.map((d) => d[i]), mode: "lines", hoverinfo: "skip", line: { color: colour("--line"), width: 1.5, dash },
  }));
  const own = {
    x, y: x.map((batch) => group.entropies.row(batch)[head]), mode: "lines+markers", line: { color: colour("--mark") },
    hovertemplate: "batch %{x}<br>entropy %{y:.4g}<extra></extra>",
  };
  const layout = look({
    xaxis: axis({ title: { text: "batch" }, dtick: Math.ceil(group.batches / 12), showgrid: false }),
    yaxis: axis({ title: { text: "entropy" }, rangemode: "tozero" }),
  });
  Plotly.react("batches", [...faint, own], layout, quiet);
}

function drawCoefficients(group, head) {
  const scale = group.coefficientMax.values[head] / 65535;
  const y = Array.from(group.coefficients.row(head), (code) => code * scale);
  const top = Math.log10(group.coefficientMax.values[head]);
  const trace = {
    type: "bar", y, marker: { color: colour("--accent"), line: { width: 0 } },
    hovertemplate: "function %{x}<br>|coefficient| %{y:.3g}<extra></extra>",
  };
  const decades = axis({ type: "log", range: [top - 4, top + 0.1], dtick: 1, exponentformat: "power" });
  Plotly.react("coefficients", [trace], look({ bargap: 0, xaxis: axis({ showgrid: false }), yaxis: decades }), quiet);
}

// ---------------------------------------------------------------- where it lies among the others

/** Corner points of the edges from these nodes up to their parents, as one broken line. */
function edges(group, nodes) {
  const x = [], y = [], nodeX = group.treeX.values, nodeY = group.treeY.values;
  for (const node of nodes) {
    const up = group.treeParent.values[node];
    x.push(nodeX[node], nodeX[node], nodeX[up], null);
    y.push(nodeY[node], nodeY[up], nodeY[up], null);
  }
  return { x, y };
}

function pathToRoot(group, head) {
  const nodes = [];
  for (let node = group.treeLeaf.values[head]; node !== 0; node = group.treeParent.values[node]) nodes.push(node);
  return nodes;
}

function drawTree(group) {
  const all = Array.from(group.treeX.values.keys()).slice(1), heads = Array.from(group.treeLeaf.values), many = group.size > 300;
  const traces = [
    { ...edges(group, all), mode: "lines", hoverinfo: "skip", line: { color: colour("--soft"), width: many ? 0.5 : 1 } },
    { x: [], y: [], mode: "lines", hoverinfo: "skip", line: { color: colour("--mark"), width: 3 } },
    {
      x: heads.map((node) => group.treeX.values[node]), y: heads.map(() => 0), mode: "markers",
      text: heads.map((_, i) => group.label(i)), customdata: heads.map((_, i) => i),
      marker: {
        color: Array.from(group.entropy.values), colorscale: page.scales.entropy, symbol: "square", size: many ? 4 : 8,
      },
      hovertemplate: "%{text}<br>entropy %{marker.color:.4g}<extra></extra>",
    },
  ];
  const bare = { visible: false, fixedrange: true }, margin = { l: 10, r: 10, t: 6, b: 10 };
  const layout = look({ margin, hovermode: "closest", xaxis: bare, yaxis: { ...bare, range: [-0.06, 1.04] } });
  Plotly.react("tree", traces, layout, quiet);
}

function markTree(group, head) {
  const { x, y } = edges(group, pathToRoot(group, head));
  Plotly.restyle("tree", { x: [x], y: [y] }, [1]);
}

const webgl = Boolean(document.createElement("canvas").getContext("webgl"));

function drawDiffusion(group, head) {
  const heads = Array.from(group.layers.values.keys()), byLayer = element("colour").value === "layer";
  const all = {
    mode: "markers", text: heads.map(group.label), customdata: heads, hovertemplate: "%{text}<extra></extra>",
    marker: {
      size: webgl ? 4 : 7, color: Array.from((byLayer ? group.layers : group.entropy).values),
      colorscale: byLayer ? page.scales.layer : page.scales.entropy, colorbar: bar(byLayer ? "layer" : "entropy"),
    },
  };
  const ring = { size: webgl ? 9 : 14, color: colour("--mark"), symbol: "circle-open", line: { width: 3 } };
  const picked = { mode: "markers", hoverinfo: "skip", marker: ring };
  (webgl ? ["x", "y", "z"] : ["x", "y"]).forEach((name, d) => {
    all[name] = heads.map((i) => group.diffusion.row(i)[d]);
    picked[name] = [all[name][head]];
  });
  all.type = picked.type = webgl ? "scatter3d" : "scatter";
  const side = (text) => ({
    ...axis({ title: { text }, showticklabels: false }), backgroundcolor: "rgba(0,0,0,0)", showspikes: false,
  });
  const layout = look({ margin: { l: 0, r: 0, t: 0, b: 0 }, uirevision: group.name, hovermode: "closest" });
  const sides = { xaxis: side("1"), yaxis: side("2") };
  if (webgl) Object.assign(layout, { dragmode: "orbit", scene: { ...sides, zaxis: side("3"), aspectmode: "cube" } });
  else Object.assign(layout, sides);
  Plotly.react("diffusion", [all, picked], layout, quiet);
}

function drawAffinity(group, head) {
  const order = Array.from(group.order.values), step = Math.ceil(group.size / 300);
  const kept = order.filter((_, i) => i % step === 0), last = kept.length - 0.5;
  const trace = {
    type: "heatmap", zmin: 0, zmax: 1, colorscale: page.scales.entropy, colorbar: bar("affinity"),
    z: kept.map((a) => { const row = group.affinity.row(a); return kept.map((b) => row[b] / 255); }),
    customdata: kept.map((a) => kept.map((b) => `${group.label(a)}<br>${group.label(b)}`)),
    hovertemplate: "%{customdata}<br>affinity %{z:.2f}<extra></extra>",
  };
  const place = order.indexOf(head) / step;
  const line = (x0, x1, y0, y1) => ({ type: "line", x0, x1, y0, y1, line: { color: colour("--mark"), width: 1.5 } });
  const bare = { showticklabels: false, fixedrange: true, ticks: "", showgrid: false, zeroline: false };
  const layout = look({
    margin: { l: 4, r: 4, t: 4, b: 4 }, xaxis: bare,
    yaxis: { ...bare, autorange: "reversed", scaleanchor: "x", constrain: "domain" },
    shapes: [line(place, place, -0.5, last), line(-0.5, last, place, place)],
  });
  Plotly.react("affinity", [trace], layout, quiet);
  element("affinity").kept = kept;
}

// ---------------------------------------------------------------- the table

const range = (g, i, name) => `${short(g[name + "Low"].values[i])} – ${short(g[name + "High"].values[i])}`;
const width = (g, i, name) => g[name + "High"].values[i] - g[name + "Low"].values[i];

// name, title, what to sort by, what to show
const COLUMNS = [
  ["head", "head", (g, i) => g.layers.values[i] * 1e4 + g.heads.values[i], (g, i) => `<a href="#${g.key(i)}">${g.key(i).replace("-", ".")}</a>`],
  ["entropy", "entropy", (g, i) => g.entropy.values[i], (g, i) => short(g.entropy.values[i])],
  ["interval", "95 % interval", (g, i) => width(g, i, "entropy"), (g, i) => range(g, i, "entropy")],
  ["rank", "rank", (g, i) => g.rank.values[i], (g, i) => short(g.rank.values[i])],
  ["rankInterval", "rank interval", (g, i) => width(g, i, "rank"), (g, i) => range(g, i, "rank")],
  ["bottom", "batches lowest", (g, i) => g.bottom.values[i], (g, i) => `${g.bottom.values[i]}/${g.batches}`],
  ["top", "batches highest", (g, i) => g.top.values[i], (g, i) => `${g.top.values[i]}/${g.batches}`],
  ["folder", "folder", (g, i) => g.folder.values[i], (g, i) => `${g.folder.values[i]}`],
];

function wanted(group, i) {
  const query = element("search").value.trim().toLowerCase();
  const layer = element("layer-filter").value, count = element("count-filter").value;
  if (layer !== "all" && group.layers.values[i] !== Number(layer)) return false;
  if (count === "bottom" && group.bottom.values[i] !== group.batches) return false;
  if (count === "top" && group.top.values[i] !== group.batches) return false;
  if (count === "some" && group.bottom.values[i] === 0) return false;
  if (!query) return true;
  const numbers = query.match(/^\D*(\d+)\s*[-.,: ]\D*(\d+)$/);
  if (numbers) return group.key(i) === `${Number(numbers[1])}-${Number(numbers[2])}`;
  return `${group.layerNames[i]} ${group.label(i)}`.toLowerCase().includes(query);
}

function headerCell(name, title) {
  const { column, down } = state.sort, sorted = name === column;
  const order = sorted ? (down ? "descending" : "ascending") : "none", arrow = sorted ? (down ? " ▾" : " ▴") : "";
  return `<th aria-sort="${order}"><button type="button" data-column="${name}">${title}${arrow}</button></th>`;
}

function drawTable(group) {
  const { column, down } = state.sort, value = COLUMNS.find(([name]) => name === column)[2];
  const rows = group.byRank.filter((i) => wanted(group, i)).sort((a, b) => (value(group, a) - value(group, b)) * (down ? -1 : 1));
  element("heads").tHead.innerHTML = `<tr>${COLUMNS.map(([name, title]) => headerCell(name, title)).join("")}</tr>`;
  element("heads").tBodies[0].innerHTML = rows.map((i) => {
    return `<tr data-head="${group.key(i)}">${COLUMNS.map(([, , , cell]) => `<td>${cell(group, i)}</td>`).join("")}</tr>`;
  }).join("");
  element("shown").textContent = `${rows.length} of ${group.size} heads`;
  markTable();
  return rows;
}

function markTable() {
  const key = state.group.key(state.head);
  for (const row of element("heads").tBodies[0].rows) row.classList.toggle("current", row.dataset.head === key);
}

// ---------------------------------------------------------------- choosing

const go = (key) => { location.hash = key; };

// What the address asks for. It is ahead of `state` until the page has been redrawn, so keys pressed meanwhile count too.
function asked() {
  const key = decodeURIComponent(location.hash.slice(1));
  const group = page.groups.find((candidate) => candidate.index.has(key)) ?? state.group ?? page.groups[0];
  return { group, head: group.index.get(key) ?? state.head ?? group.byRank[0] };
}

function show() {
  const { group, head } = asked(), changed = group !== state.group;
  Object.assign(state, { group, head });
  if (changed) showGroup(group);
  showHead(group, head);
}

function showGroup(group) {
  element("group").value = group.name;
  const layers = group.layerList.map((layer) => `<option>${layer}</option>`);
  element("layer-filter").innerHTML = `<option value="all">all</option>${layers.join("")}`;
  const [, rows, columns] = group.samples.shape, reduced = rows < group.queries || columns < group.keys;
  element("sample-note").textContent = [
    `Batch 0, ${group.queries} × ${group.keys}${reduced ? `, shown as ${rows} × ${columns} block means` : ""}, 8 bits an entry.`,
    page.kind === "probs" ? "Colour is the square root of attention." : "",
    "Rows are queries, columns keys, ordered on the right by the network's query and key trees.",
  ].join(" ");
  drawMap(group);
  drawTree(group);
  drawTable(group);
}

function showHead(group, head) {
  markMap(group, head);
  markTree(group, head);
  markTable();
  drawFacts(group, head);
  drawAttention("before", group, group.samples, head);
  drawAttention("after", group, group.organised, head);
  drawBatches(group, head);
  drawCoefficients(group, head);
  drawDiffusion(group, head);
  drawAffinity(group, head);
  document.body.dataset.head = group.key(head);
  Plotly.Plots.resize("map"); // its panel is as high as the head's, which has just been filled
}

function step(by) {
  const { group, head } = asked(), place = group.byRank.indexOf(head) + by;
  if (place >= 0 && place < group.size) go(group.key(group.byRank[place]));
}

function moveOnMap(event) {
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const { group, head } = asked(), [down, right] = moves[event.key];
  const layer = group.layerList[group.layerList.indexOf(group.layers.values[head]) + down];
  const key = `${layer}-${group.heads.values[head] + right}`;
  if (group.index.has(key)) go(key);
}

function globalKeys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
  if (event.key === "[") step(-1);
  if (event.key === "]") step(1);
  if (event.key === "/") { event.preventDefault(); element("search").focus(); }
}

function switchTheme() {
  const dark = colour("color-scheme") === "dark" || getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  redraw();
}

function redraw() {
  showGroup(state.group);
  showHead(state.group, state.head);
}

function listen() {
  window.addEventListener("hashchange", show);
  document.addEventListener("keydown", globalKeys);
  element("map").addEventListener("keydown", moveOnMap);
  element("theme").addEventListener("click", switchTheme);
  element("previous").addEventListener("click", () => step(-1));
  element("next").addEventListener("click", () => step(1));
  element("colour").addEventListener("change", () => drawDiffusion(state.group, state.head));
  element("group").addEventListener("change", (event) => {
    const group = page.groups.find((candidate) => candidate.name === event.target.value);
    go(group.key(group.byRank[0]));
  });
  for (const id of ["layer-filter", "count-filter"]) element(id).addEventListener("change", () => drawTable(state.group));
  element("search").addEventListener("input", () => {
    const rows = drawTable(state.group);
    if (rows.length === 1) go(state.group.key(rows[0]));
  });
  element("heads").addEventListener("click", (event) => {
    const column = event.target.dataset.column, row = event.target.closest("tr[data-head]");
    if (column) {
      state.sort = { column, down: state.sort.column === column && !state.sort.down };
      drawTable(state.group);
      element("heads").querySelector(`[data-column="${column}"]`).focus();
    } else if (row) go(row.dataset.head);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  onPick("map", (point) => state.group.index.get(`${state.group.layerList[point.y]}-${point.x}`));
  onPick("tree", (point) => point.customdata);
  onPick("diffusion", (point) => point.customdata);
  onPick("affinity", (point) => element("affinity").kept[point.y]);
}

openGroups().then(() => {
  element("group").innerHTML = page.groups.map(() => "<option></option>").join("");
  page.groups.forEach(({ name }, i) => Object.assign(element("group").options[i], { textContent: name, value: name }));
  show();
  listen();
  document.body.dataset.ready = "yes";
});
