// The map of all heads, and what is known about the picked one.

function drawMap(group) {
  const rows = group.layerList, columns = Math.max(...group.heads.values) + 1, what = group.cost ? state.colour : "entropy";
  const available = element("map").clientWidth - 44 - 74, wide = Math.min(60, available / columns);
  const high = Math.max(9, Math.min(36, wide, 470 / rows.length)), gap = wide > 12 ? 1.5 : 0.5;
  const plot = stage("map", rows.length * high + 46, { left: 44, right: 74, top: 6, bottom: 40 }, "Map of the heads, layers down and heads across");
  const { root, inner } = plot, scale = shade(group, what);
  const cells = svg("g");
  for (let i = 0; i < group.size; i++) {
    const row = rows.indexOf(group.layers.values[i]), x = inner.left + group.heads.values[i] * wide, y = inner.top + row * high;
    const share = scale.of(i), fill = share === null ? "var(--missing)" : css(scale.colour(share));
    cells.append(svg("rect", { x, y, width: wide - gap, height: high - gap, rx: 2, fill, "data-head": group.key(i), class: "cell" }));
    const mark = markOf(group, i, x + (wide - gap) / 2, y + (high - gap) / 2, Math.min(wide, high) * 0.26, what);
    if (mark) cells.append(mark);
  }
  root.append(cells);
  const everyRow = Math.ceil(13 / high), everyColumn = Math.ceil(20 / wide);
  rows.forEach((layer, row) => {
    if (row % everyRow === 0) root.append(svg("text", { x: inner.left - 6, y: inner.top + (row + 0.5) * high + 4, "text-anchor": "end" }, layer));
  });
  for (let head = 0; head < columns; head += everyColumn) {
    root.append(svg("text", { x: inner.left + (head + 0.5) * wide - gap / 2, y: inner.top + rows.length * high + 14, "text-anchor": "middle" }, head));
  }
  const middle = inner.top + (rows.length * high) / 2;
  root.append(
    svg("text", { x: inner.left + (columns * wide) / 2, y: inner.top + rows.length * high + 32, "text-anchor": "middle", class: "title" }, "head"),
    svg("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})`, class: "title" }, "layer"),
    svg("rect", { id: "map-mark", width: wide - gap + 3, height: high - gap + 3, rx: 3, class: "picked-box" }),
  );
  const bar = Math.max(60, Math.min(200, rows.length * high - 4));
  colourBar(root, inner.left + columns * wide + 14, inner.top, bar, scale.colour, scale.low, scale.high, what === "cost" ? "cost alone (log)" : "entropy");
  headsOf(root, (key) => headWords(group, group.index.get(key)));
  plot.place = (i) => [inner.left + group.heads.values[i] * wide - 1.5, inner.top + rows.indexOf(group.layers.values[i]) * high - 1.5];
  group.map = plot;
  drawLegend(what);
}

/** A struck-out cell can go, a dot must stay, of a question mark not even the cost alone is sure; a ring has the lowest entropies in every batch. */
function markOf(group, i, x, y, size, what) {
  const verdict = group.verdictOf(i), both = (d) => svg("g", { class: "mark" }, svg("path", { d, class: "halo" }), svg("path", { d }));
  if (verdict === "can go") return both(`M${x - size},${y - size}L${x + size},${y + size}M${x - size},${y + size}L${x + size},${y - size}`);
  if (verdict === "must stay") return svg("circle", { cx: x, cy: y, r: size * 0.75, class: "dot" });
  if (group.unclear && group.unclear.values[i] === 1) return svg("text", { x, y: y + size, "text-anchor": "middle", "font-size": size * 3, class: "doubt" }, "?");
  if (what === "entropy" && !page.answered && group.bottom.values[i] === group.batches) return svg("circle", { cx: x, cy: y, r: size * 0.8, class: "ring" });
  return null;
}

function drawLegend(what) {
  const sign = (mark) => { const root = svg("svg", { width: 16, height: 14, viewBox: "0 0 16 14" }); root.append(mark); return root; };
  const item = (mark, words) => html("span", {}, sign(mark), ` ${words}`);
  const cross = svg("g", { class: "mark" }, svg("path", { d: "M4,3L12,11M4,11L12,3", class: "halo" }), svg("path", { d: "M4,3L12,11M4,11L12,3" }));
  const doubt = page.groups.some((group) => group.unclear?.values.includes(1)) ? [item(svg("text", { x: 8, y: 12, "text-anchor": "middle", class: "doubt" }, "?"), `alone perhaps over ${page.tolerance}`)] : [];
  const items = page.answered
    ? [item(cross, "can go"), item(svg("circle", { cx: 8, cy: 7, r: 4, class: "dot" }), "must stay"), ...doubt, html("span", {}, "no mark: not sure")]
    : page.groups.some((group) => group.bottom.values.includes(group.batches))
      ? [item(svg("circle", { cx: 8, cy: 7, r: 4, class: "ring" }), `lowest ${page.percent} % in every batch`)]
      : [html("span", {}, `no head is in the lowest ${page.percent} % in every batch`)];
  if (what === "cost") items.push(html("span", {}, `colour: ${page.metric} when the head is removed alone`));
  element("map-legend").replaceChildren(...items);
}

function markMap(group, head) {
  const [x, y] = group.map.place(head), mark = element("map-mark");
  mark.setAttribute("x", x);
  mark.setAttribute("y", y);
}

// ---------------------------------------------------------------- the picked head

function drawFacts(group, head) {
  element("picked-title").replaceChildren(`Head ${group.name_(head)} `, html("small", {}, group.layerNames[head]));
  element("verdict").replaceChildren(...verdictWords(group, head));
  const strips = [];
  if (group.cost) strips.push(strip(group, head, "cost", "cost when removed alone", { log: true, line: page.tolerance, interval: group.costLow ? ["costLow", "costHigh"] : null }));
  if (group.gradient) strips.push(strip(group, head, "gradient", "gradient importance", { log: true }));
  strips.push(strip(group, head, "entropy", "entropy", { interval: ["entropyLow", "entropyHigh"] }));
  element("strips").replaceChildren(...strips.filter(Boolean));
  const link = (i) => html("a", { href: `#${group.key(i)}` }, group.name_(i));
  const near = nearest(group, head).flatMap((i, n) => (n ? [", ", link(i)] : [link(i)]));
  const facts = [
    ["rank by entropy", [`${short(group.rank.values[head])} of ${group.size} (95 %: ${short(group.rankLow.values[head])} to ${short(group.rankHigh.values[head])})`]],
    [`lowest / highest ${page.percent} %`, [`in ${group.bottom.values[head]} / ${group.top.values[head]} of ${group.batches} batches`]],
    ["folder", [`${group.folder.values[head]}`]],
    ["attends like", near],
  ];
  element("facts").replaceChildren(...facts.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, ...value))));
}

function verdictWords(group, head) {
  const verdict = group.verdictOf(head), alone = group.cost && !Number.isNaN(group.cost.values[head]) ? short(group.cost.values[head]) : null;
  if (!verdict) return [html("span", { class: "badge" }, "not measured"), " Only its entropy is known."];
  const words = {
    "can go": page.planned ? "It is in the plan, whose heads go together at the cost above." : "It is in the set of heads that was measured to be cheap to remove.",
    "must stay": `Removed alone it costs ${alone}, more than ${page.tolerance}${group.costLow ? " (95 %)" : ""}.`,
    "not sure": alone === null ? "It was not measured alone." : `Removed alone it costs ${alone}; ${page.removable ? `it is not in the ${page.planned ? "plan" : "set that was measured to be cheap"}` : "no set of heads was measured to be cheap"}.`,
  };
  return [html("span", { class: `badge ${verdict.replace(" ", "-")}` }, verdict), ` ${words[verdict]}`];
}

/** One measure: a tick for every head, the picked one with its value and, where there is one, its interval. */
function strip(group, head, name, title, { log = false, interval = null, line = null }) {
  const values = Array.from(group[name].values), known = values.filter((v) => !Number.isNaN(v));
  if (!known.length || Number.isNaN(values[head])) return null;
  const width = Math.max(220, element("strips").clientWidth), high = Math.max(...known, 1e-9);
  const low = log ? Math.max(Math.min(...known), high / 1e4) : Math.min(...known);
  const x = (log ? logarithmic : linear)([low, high], [6, width - 6]), narrow = interval && width < 400;
  const root = svg("svg", { width, height: narrow ? 58 : 44, class: "strip" }), marks = svg("g", narrow ? { transform: "translate(0 14)" } : {});
  root.append(svg("text", { x: 0, y: 12, class: "title" }, title));
  const said = interval ? `${short(values[head])} (95 %: ${short(group[interval[0]].values[head])} to ${short(group[interval[1]].values[head])})` : short(values[head]);
  root.append(svg("text", narrow ? { x: 0, y: 28, class: "value" } : { x: width, y: 12, "text-anchor": "end", class: "value" }, said), marks);
  known.forEach((value) => marks.append(svg("line", { x1: x(value), x2: x(value), y1: 22, y2: 36, class: "tick" })));
  if (line && line > low && line < high) {
    marks.append(svg("line", { x1: x(line), x2: x(line), y1: 18, y2: 40, class: "limit" }));
  }
  const inside = (end) => Math.min(width, Math.max(0, x(group[end].values[head])));
  if (interval) marks.append(svg("line", { x1: inside(interval[0]), x2: inside(interval[1]), y1: 29, y2: 29, class: "interval" }));
  marks.append(svg("circle", { cx: x(values[head]), cy: 29, r: 5, class: "here" }));
  return root;
}

function nearest(group, head, count = 5) {
  return group.byRank.filter((i) => i !== head).sort((a, b) => affinity(group, head, b) - affinity(group, head, a)).slice(0, count);
}
