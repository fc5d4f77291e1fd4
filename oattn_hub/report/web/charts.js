// What removal costs, score by score; the picked head's batches and coefficients; where it lies among the others.

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4"];
const shownScores = new Set();

function drawCosts() {
  if (!page.curves) return;
  const metric = page.curves.metrics[Number(element("cost-metric").value)];
  const shown = page.curves.scores.filter((score) => shownScores.has(score.name) && score.curves[metric.name]);
  const narrow = element("costs").clientWidth < 560, labels = narrow ? 8 : 250;
  const plot = stage("costs", 330, { left: 52, right: labels, top: 24, bottom: 40 }, `Cost of removing heads: ${metric.title}`), { root, inner } = plot;
  const percent = page.curves.fractions.map((f) => 100 * f);
  const all = shown.flatMap((score) => [...score.curves[metric.name].mean, ...(score.name === "random" ? score.curves[metric.name].high : [])]);
  const low = Math.min(metric.baseline, ...all), high = Math.max(metric.baseline, ...all), room = (high - low) * 0.05 || 1;
  const x = linear([0, percent.at(-1)], [inner.left, inner.right]), y = linear([low - (low ? room : 0), high + room], [inner.bottom, inner.top]);
  axes(plot, x, y, { xTitle: "heads removed, %", yTitle: metric.title });
  root.append(svg("line", { x1: inner.left, x2: inner.right, y1: y(metric.baseline), y2: y(metric.baseline), class: "limit" }));
  const ends = [];
  shown.forEach((score) => {
    const curve = score.curves[metric.name], style = scoreStyle(score.name);
    const band = [...percent.map((p, i) => [x(p), y(curve.high[i])]), ...percent.map((p, i) => [x(p), y(curve.low[i])]).reverse()];
    root.append(svg("path", { d: `${pathOf(band)}Z`, fill: style.colour, opacity: 0.12 }));
    root.append(svg("path", { d: pathOf(percent.map((p, i) => [x(p), y(curve.mean[i])])), stroke: style.colour, "stroke-dasharray": style.dash, class: "line" }));
    percent.forEach((p, i) => {
      const dot = svg("circle", { cx: x(p), cy: y(curve.mean[i]), r: 3.5, fill: style.colour });
      dot.addEventListener("pointermove", (event) => showTip(event, [score.title, `${p} % removed: ${short(curve.mean[i])} (95 %: ${short(curve.low[i])} to ${short(curve.high[i])})`]));
      dot.addEventListener("pointerleave", (event) => showTip(event, null));
      root.append(dot);
    });
    ends.push({ score, style, y: y(curve.mean.at(-1)) });
  });
  if (!narrow) labelEnds(root, ends, inner);
}

/** Names at the ends of the curves, pushed apart until none covers another. */
function labelEnds(root, ends, inner) {
  ends.sort((a, b) => a.y - b.y);
  for (let i = 1; i < ends.length; i++) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + 15);
  const over = Math.max(0, (ends.at(-1)?.y ?? 0) - inner.bottom);
  for (const { score, style, y } of ends) root.append(svg("text", { x: inner.right + 8, y: y - over + 4, style: `fill: ${style.colour}`, class: "end" }, score.title));
}

const RANDOM = { colour: "var(--soft)", dash: "3 3" };

/** Its own colour and dash for every score; those shown first differ most. */
function scoreStyle(name) {
  if (name === "random") return RANDOM;
  const place = page.curves.order.filter((score) => score !== "random").indexOf(name);
  return { colour: SERIES[place % SERIES.length], dash: DASHES[(place + Math.floor(place / SERIES.length)) % DASHES.length] };
}

function listScores() {
  if (!page.curves) return;
  const names = page.curves.scores.map((score) => score.name), always = ["random", "haar"].filter((name) => names.includes(name));
  page.curves.order = [...names.filter((name) => !always.includes(name)).slice(0, 5 - always.length), ...always];
  page.curves.order.forEach((name) => shownScores.add(name));
  page.curves.order.push(...names.filter((name) => !page.curves.order.includes(name)));
  element("score-list").replaceChildren(...page.curves.scores.map((score) => {
    const box = html("input", { type: "checkbox", name: score.name });
    box.checked = shownScores.has(score.name);
    box.addEventListener("change", () => { if (box.checked) shownScores.add(score.name); else shownScores.delete(score.name); drawCosts(); });
    const style = scoreStyle(score.name);
    const sign = svg("svg", { width: 26, height: 10 }, svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: style.colour, "stroke-width": 2.5, "stroke-dasharray": style.dash }));
    return html("label", {}, box, " ", sign, ` ${score.title}`);
  }));
  element("cost-metric").replaceChildren(...page.curves.metrics.map((metric, i) => html("option", { value: i }, metric.title)));
}

function drawBatches(group, head) {
  const plot = stage("batches", 210, { left: 46, right: 12, top: 22, bottom: 38 }, "Entropy of the picked head in every batch"), { root, inner } = plot;
  const batches = Array.from({ length: group.batches }, (_, b) => b), own = batches.map((b) => group.entropies.row(b)[head]);
  const lines = [0.1, 0.5, 0.9].map((q) => batches.map((b) => { const sorted = Float32Array.from(group.entropies.row(b)).sort(); return sorted[Math.round(q * (sorted.length - 1))]; }));
  const high = Math.max(...own, ...lines.flat()), x = linear([0, Math.max(1, group.batches - 1)], [inner.left + 8, inner.right - 8]), y = linear([0, high * 1.05], [inner.bottom, inner.top]);
  axes(plot, x, y, { xTitle: "batch", yTitle: "entropy", xTicks: batches.filter((b) => b % Math.ceil(group.batches / 12) === 0), yTicks: y.ticks(4) });
  lines.forEach((line, i) => root.append(svg("path", { d: pathOf(line.map((v, b) => [x(b), y(v)])), class: "line faint", "stroke-dasharray": i === 1 ? "" : "3 3" })));
  root.append(svg("path", { d: pathOf(own.map((v, b) => [x(b), y(v)])), class: "line own" }));
  own.forEach((v, b) => {
    const dot = svg("circle", { cx: x(b), cy: y(v), r: 4, class: "here" });
    dot.addEventListener("pointermove", (event) => showTip(event, [`batch ${b}`, `entropy ${short(v)}`]));
    dot.addEventListener("pointerleave", (event) => showTip(event, null));
    root.append(dot);
  });
}

function drawCoefficients(group, head) {
  const values = Array.from(group.coefficients.row(head), (code) => (code ? group.coefficientMax.values[head] * 10 ** ((code - 255) / 50) : 0));
  const plot = stage("coefficients", 210, { left: 46, right: 12, top: 22, bottom: 38 }, "Expansion coefficients of the picked head"), { root, inner } = plot;
  const high = Math.max(...values, 1e-12) * 1.3, x = linear([0, values.length], [inner.left, inner.right]), y = logarithmic([high / 2e4, high], [inner.bottom, inner.top]);
  axes(plot, x, y, { xTitle: "query-key function, widest first", yTitle: "|coefficient|", text: (v) => (v >= 0.01 && v < 1000 ? short(v) : v.toExponential(0)) });
  root.append(svg("path", { d: values.map((v, i) => `M${x(i + 0.5).toFixed(1)},${inner.bottom}V${y(v).toFixed(1)}`).join(""), class: "needles" }));
}

// ---------------------------------------------------------------- among the others

function drawTree(group) {
  const plot = stage("tree", 290, { left: 10, right: 10, top: 10, bottom: 34 }, "Tree of the heads"), { root, inner } = plot, many = group.size > 300;
  const x = linear([-0.5, group.size - 0.5], [inner.left, inner.right]), y = linear([0, 1], [inner.bottom, inner.top]);
  const up = (node) => { const parent = group.treeParent.values[node]; return `M${x(group.treeX.values[node]).toFixed(1)},${y(group.treeY.values[node]).toFixed(1)}V${y(group.treeY.values[parent]).toFixed(1)}H${x(group.treeX.values[parent]).toFixed(1)}`; };
  root.append(svg("path", { d: Array.from(group.treeX.values.keys()).slice(1).map(up).join(""), class: "branch", "stroke-width": many ? 0.4 : 1 }));
  root.append(svg("path", { id: "tree-mark", class: "branch own" }));
  const width = Math.max(1, (inner.right - inner.left) / group.size - (many ? 0 : 1));
  ["cost", "entropy", "layer"].filter((what) => what !== "cost" || group.cost).forEach((what, row) => {
    const scale = shade(group, what);
    for (let i = 0; i < group.size; i++) {
      const share = scale.of(i), fill = share === null ? "var(--missing)" : css(scale.colour(share));
      root.append(svg("rect", { x: x(group.treeX.values[group.treeLeaf.values[i]]) - width / 2, y: inner.bottom + 3 + row * 10, width, height: 9, fill, "data-head": group.key(i) }));
    }
  });
  headsOf(root, (key) => headWords(group, group.index.get(key)));
  group.branch = up;
}

function markTree(group, head) {
  const nodes = [];
  for (let node = group.treeLeaf.values[head]; node !== 0; node = group.treeParent.values[node]) nodes.push(node);
  element("tree-mark").setAttribute("d", nodes.map(group.branch).join(""));
}

const turn = { around: 0.6, tilt: 0.35 };

/** The heads in three diffusion coordinates; drag to turn. */
function drawDiffusion(group, head) {
  const place = element("diffusion"), width = place.clientWidth, height = 380, { made, pen } = canvas(width, height);
  const what = element("diffusion-colour").value, scale = shade(group, what === "cost" && !group.cost ? "entropy" : what), dimensions = group.diffusion.shape[1];
  const centred = [0, 1, 2].map((d) => {
    const column = Array.from({ length: group.size }, (_, i) => (d < dimensions ? group.diffusion.row(i)[d] : 0)), low = Math.min(...column), high = Math.max(...column);
    return column.map((v) => (2 * v - low - high) / (high - low || 1));
  });
  const [ca, sa, ct, st] = [Math.cos(turn.around), Math.sin(turn.around), Math.cos(turn.tilt), Math.sin(turn.tilt)], unit = Math.min(width, height) * 0.36;
  const project = ([a, b, c]) => { const u = a * ca + b * sa, v = b * ca - a * sa; return [width / 2 + u * unit, height / 2 - (c * ct - v * st) * unit, v * ct + c * st]; };
  pen.strokeStyle = themeColour("--line");
  for (const [from, to] of [[[-1, -1, -1], [1, -1, -1]], [[-1, -1, -1], [-1, 1, -1]], [[-1, -1, -1], [-1, -1, 1]]]) {
    const [x0, y0] = project(from), [x1, y1] = project(to);
    pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke();
  }
  const points = Array.from({ length: group.size }, (_, i) => ({ i, at: project([centred[0][i], centred[1][i], centred[2][i]]) })).sort((a, b) => b.at[2] - a.at[2]);
  const size = group.size > 300 ? 3 : 5.5;
  for (const { i, at: [x, y] } of points) {
    const share = scale.of(i);
    pen.beginPath(); pen.arc(x, y, size, 0, 7);
    pen.fillStyle = share === null ? themeColour("--missing") : css(scale.colour(share));
    pen.fill(); pen.strokeStyle = themeColour("--panel"); pen.lineWidth = 0.7; pen.stroke();
    if (i === head) { pen.beginPath(); pen.arc(x, y, size + 4, 0, 7); pen.strokeStyle = themeColour("--mark"); pen.lineWidth = 3; pen.stroke(); }
  }
  const closest = (event) => {
    const box = made.getBoundingClientRect(), [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const near = points.map(({ i, at }) => [Math.hypot(at[0] - x, at[1] - y), i]).sort((a, b) => a[0] - b[0])[0];
    return near[0] < 14 ? near[1] : null;
  };
  made.addEventListener("pointerdown", (event) => { turn.from = [event.clientX, event.clientY]; turn.moved = false; });
  made.addEventListener("pointermove", (event) => {
    if (event.buttons && turn.from) {
      turn.around += (event.clientX - turn.from[0]) / 150;
      turn.tilt += (event.clientY - turn.from[1]) / 150;
      turn.from = [event.clientX, event.clientY];
      turn.moved = true;
      requestAnimationFrame(() => drawDiffusion(state.group, state.head));
      return;
    }
    const found = closest(event);
    showTip(event, found === null ? null : headWords(group, found));
  });
  made.addEventListener("pointerleave", (event) => showTip(event, null));
  made.addEventListener("click", (event) => { const found = closest(event); if (!turn.moved && found !== null) go(group.key(found)); });
  place.replaceChildren(made);
}

function drawAffinity(group, head) {
  const place = element("affinity"), side = Math.min(380, place.clientWidth), { made, pen } = canvas(side, side);
  const row = (i) => (group.landmarks ? group.landmarks.values[i] : i), all = Array.from(group.order.values);
  const order = all.filter((i, place) => place === 0 || row(i) !== row(all[place - 1])); // one head for each landmark
  const n = order.length, small = document.createElement("canvas");
  if (!group.affinityImage) {
    small.width = small.height = n;
    const ink = small.getContext("2d"), image = ink.createImageData(n, n);
    for (let r = 0; r < n; r++) for (let c = 0; c < n; c++) image.data.set([...ENTROPY(affinity(group, order[r], order[c])), 255], 4 * (r * n + c));
    ink.putImageData(image, 0, 0);
    group.affinityImage = small;
  }
  pen.imageSmoothingEnabled = n > side;
  pen.drawImage(group.affinityImage, 0, 0, side, side);
  const at = ((order.findIndex((i) => row(i) === row(head)) + 0.5) * side) / n;
  pen.strokeStyle = themeColour("--mark");
  pen.lineWidth = 1.5;
  pen.strokeRect(-2, at - Math.max(1, side / n / 2), side + 4, Math.max(2, side / n));
  pen.strokeRect(at - Math.max(1, side / n / 2), -2, Math.max(2, side / n), side + 4);
  const pair = (event) => {
    const box = made.getBoundingClientRect(), spot = (v) => order[Math.min(n - 1, Math.max(0, Math.floor((v / side) * n)))];
    return [spot(event.clientY - box.top), spot(event.clientX - box.left)];
  };
  made.addEventListener("pointermove", (event) => { const [a, b] = pair(event); showTip(event, [`${group.name_(a)} and ${group.name_(b)}`, `affinity ${short(affinity(group, a, b))}`]); });
  made.addEventListener("pointerleave", (event) => showTip(event, null));
  made.addEventListener("click", (event) => go(group.key(pair(event)[0])));
  place.replaceChildren(made);
}
