// The picked head in one context: its matrix in token order and organised, and the context itself, read with the head's eyes.

const TREE = 46; // pixels a tree takes beside the organised matrix

async function openSample(sample) {
  if (sample.open) return;
  for (const [name, packed] of Object.entries(sample.arrays)) sample[name] = (await unpack(packed)).values;
  sample.open = true;
}

/** Values of one head in one context: {of(row, column), meanOfColumns(), …}; NaN where masked. */
async function readMatrix(sample, head) {
  await openSample(sample);
  const codes = new Uint8Array(await inflate(sample.streams[head])), { rows, columns } = sample;
  const table = page.kind === "probs" ? page.codeValues.map((v) => v ?? NaN) : linearCodes(sample.low[head], sample.high[head]);
  const counts = new Uint32Array(table.length);
  for (const code of codes) counts[code] += 1;
  const used = table.map((value, code) => ({ value, count: counts[code] })).filter(({ count }, code) => code && count);
  const least = used[0]?.value ?? 0, most = used.at(-1)?.value ?? 1;
  // one token that all look at must not leave the rest black: a column of entries and a fifth have the brightest colour
  let left = Math.max(0.005, 1.2 / columns) * codes.length, bright = most;
  for (const { value, count } of used.reverse()) { bright = value; left -= count; if (left < 0) break; }
  bright = Math.max(bright, least + (most - least) / 1000); // all that a head gives away may be one column
  const share = page.kind === "probs" ? (value) => Math.sqrt(value / bright) : (value) => (value - least) / (bright - least || 1);
  return { codes, rows, columns, table, share, most, bright, least, of: (r, c) => table[codes[r * columns + c]] };
}

function linearCodes(low, high) {
  return Array.from({ length: page.linearCodes + 1 }, (_, code) => (code ? low + ((code - 1) * (high - low)) / (page.linearCodes - 1) : NaN));
}

async function drawAttention(group, head) {
  const sample = group.samples[Math.min(state.context, group.samples.length - 1)];
  element("attention").hidden = !sample;
  if (!sample) return;
  const matrix = await readMatrix(sample, head);
  if (state.group !== group || state.head !== head) return; // another head was picked meanwhile
  const view = { group, head, sample, matrix, ...axesOf(sample) };
  if (state.query !== null && state.query >= matrix.rows) state.query = null;
  const width = Math.min(560, (element("attention-pair").clientWidth - (innerWidth > 900 ? 32 : 0)) / (innerWidth > 900 ? 2 : 1));
  drawMatrix(view, "before", width, null, null);
  drawMatrix(view, "after", width, sample.queryOrder, sample.keyOrder);
  drawReading(view);
  element("attention-title").replaceChildren(`Attention of head ${group.name_(head)} `, html("small", {}, `${sizeWords(sample)}, ${page.kind}, colour: ${page.kind === "probs" ? "square root" : "value"}, darkest ${short(matrix.least)}, brightest from ${short(matrix.bright)}, largest ${short(matrix.most)}`));
}

/** How many queries and keys there are, and whether what is drawn are means of them. */
function sizeWords({ full: [queries, keys], rows, columns }) {
  const whole = `${queries} × ${keys}`;
  return rows === queries && columns === keys ? whole : `${whole}, shown as ${rows} × ${columns} means`;
}

const axesOf = (sample) => ({ queryAxis: page.axes[sample.query] ?? null, keyAxis: page.axes[sample.key] ?? null });

/** What a position is called: a token, a patch, a second, or its number. */
function positionName(axis, place, count, full) {
  const at = Math.floor((place * full) / count);
  if (!axis) return `position ${at}`;
  if (axis.kind === "text") return `“${axis.tokens[at].trim() || axis.tokens[at]}” (${at})`;
  if (axis.kind === "time") return `${((at * axis.seconds) / full).toFixed(2)} s`;
  const patch = at - (axis.prefix ?? 0);
  return patch < 0 ? `token ${at} before the patches` : `patch row ${Math.floor(patch / axis.columns)}, column ${patch % axis.columns}`;
}

const queryName = (view, row) => positionName(view.queryAxis, row, view.matrix.rows, view.sample.full[0]);
const keyName = (view, column) => positionName(view.keyAxis, column, view.matrix.columns, view.sample.full[1]);

// ---------------------------------------------------------------- the two matrices

function drawMatrix(view, id, width, rowOrder, columnOrder) {
  const { matrix } = view, place = element(id), labelled = !rowOrder;
  const cell = (width - 60) / matrix.columns, names = labelled && cell >= 9;
  const left = rowOrder ? TREE : names ? 78 : 4, top = rowOrder ? TREE : names ? 78 : TREE;
  const side = width - Math.max(left, TREE) - 6, high = Math.min(side, (side * Math.max(matrix.rows, matrix.columns / 6)) / matrix.columns);
  const { made, pen } = canvas(width, top + high + 4);
  pen.imageSmoothingEnabled = side < matrix.columns;
  pen.drawImage(picture(matrix, rowOrder, columnOrder), left, top, side, high);
  if (rowOrder) drawTrees(pen, view.sample, left, top, side, high);
  else if (names) drawNames(pen, view, left, top, side, high);
  else drawHints(pen, left, top, side, high);
  place.replaceChildren(made, html("div", { class: "crosshair" }));
  const at = (event) => {
    const box = made.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - left) / side) * matrix.columns), row = Math.floor(((event.clientY - box.top - top) / high) * matrix.rows);
    if (row < 0 || column < 0 || row >= matrix.rows || column >= matrix.columns) return null;
    return [rowOrder ? rowOrder[row] : row, columnOrder ? columnOrder[column] : column];
  };
  made.addEventListener("pointermove", (event) => {
    const found = at(event);
    showTip(event, found && pairWords(view, ...found));
    if (found && !state.pinned) { state.query = found[0]; drawReading(view); }
  });
  made.addEventListener("pointerleave", (event) => showTip(event, null));
  made.addEventListener("click", (event) => { const found = at(event); if (found) pin(view, found[0]); });
}

/** The lowest code of probabilities stands for everything below it too, zero included. */
const amountWords = (value) => (page.kind === "probs" && value <= page.codeValues[1] ? `${short(value)} or less` : `≈ ${short(value)}`);

function pairWords(view, row, column) {
  const value = view.matrix.of(row, column);
  return [`${queryName(view, row)} → ${keyName(view, column)}`, Number.isNaN(value) ? "masked: the model may not look there" : `attends with ${amountWords(value)}`];
}

function picture(matrix, rowOrder, columnOrder) {
  const { rows, columns, codes } = matrix, made = document.createElement("canvas");
  made.width = columns;
  made.height = rows;
  const pen = made.getContext("2d"), image = pen.createImageData(columns, rows), missing = themeRgb("--missing");
  const colours = matrix.table.map((value, code) => (code ? MATRIX(matrix.share(value)) : missing));
  for (let r = 0; r < rows; r++) {
    const from = (rowOrder ? rowOrder[r] : r) * columns;
    for (let c = 0; c < columns; c++) {
      const [red, green, blue] = colours[codes[from + (columnOrder ? columnOrder[c] : c)]], to = 4 * (r * columns + c);
      image.data[to] = red;
      image.data[to + 1] = green;
      image.data[to + 2] = blue;
      image.data[to + 3] = 255;
    }
  }
  pen.putImageData(image, 0, 0);
  return made;
}

function themeRgb(name) {
  const hex = themeColour(name).replace("#", "");
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

/** The query tree at the left and the key tree on top: branches that meet low hold positions that attend alike. */
function drawTrees(pen, sample, left, top, side, high) {
  const line = (tree, length, put) => {
    const n = tree.leaves;
    pen.strokeStyle = themeColour("--soft");
    pen.lineWidth = n > 200 ? 0.4 : 0.8;
    pen.beginPath();
    for (let node = 1; node < tree.x.length; node++) {
      const up = tree.parent[node], at = ((tree.x[node] + 0.5) * length) / n, to = ((tree.x[up] + 0.5) * length) / n;
      put("moveTo", at, tree.y[node]);
      put("lineTo", at, tree.y[up]);
      put("lineTo", to, tree.y[up]);
    }
    pen.stroke();
  };
  const depth = TREE - 6;
  line({ x: sample.keyX, y: sample.keyY, parent: sample.keyParent, leaves: sample.full[1] }, side, (step, at, height) => pen[step](left + at, top - 3 - height * depth));
  line({ x: sample.queryX, y: sample.queryY, parent: sample.queryParent, leaves: sample.full[0] }, high, (step, at, height) => pen[step](left - 3 - height * depth, top + at));
}

function drawNames(pen, view, left, top, side, high) {
  const { matrix } = view, text = (axis, i) => (axis?.kind === "text" ? axis.tokens[i] : String(i));
  pen.fillStyle = themeColour("--soft");
  pen.font = "11px ui-monospace, monospace";
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let r = 0; r < matrix.rows; r++) pen.fillText(text(view.queryAxis, r).slice(0, 11), left - 5, top + ((r + 0.5) * high) / matrix.rows);
  for (let c = 0; c < matrix.columns; c++) {
    pen.save();
    pen.translate(left + ((c + 0.5) * side) / matrix.columns, top - 5);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "left";
    pen.fillText(text(view.keyAxis, c).slice(0, 11), 0, 0);
    pen.restore();
  }
}

function drawHints(pen, left, top, side, high) {
  pen.fillStyle = themeColour("--soft");
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.fillText("keys →   rows are queries ↓", left, top - 8);
}

// ---------------------------------------------------------------- reading the context

function pin(view, row) {
  state.pinned = !(state.pinned && state.query === row);
  state.query = state.pinned ? row : null;
  drawReading(view);
}

/** What the chosen query attends to, or all queries on average. */
function weights(view) {
  const { matrix } = view, found = new Float64Array(matrix.columns);
  const rows = state.query === null ? Array.from({ length: matrix.rows }, (_, r) => r) : [state.query];
  for (const r of rows) for (let c = 0; c < matrix.columns; c++) found[c] += (matrix.of(r, c) || 0) / rows.length;
  const low = page.kind === "probs" ? 0 : Math.min(...found), high = Math.max(...found);
  return { values: found, share: (c) => (found[c] - low) / (high - low || 1) };
}

function drawReading(view) {
  const from = state.query === null ? "all queries" : queryName(view, state.query);
  const how = state.pinned ? "Click it again to let go." : "Rest on a row of the matrix to read it, click to hold it.";
  element("reading-title").replaceChildren("Where ", html("b", {}, from), state.query === null ? " look, on average" : " looks", html("small", {}, ` ${how}`));
  element("reading-most").textContent = mostWords(view);
  const drawers = { text: drawText, image: drawPicture, time: drawTime }, axis = view.keyAxis;
  element("reading").replaceChildren(...(axis ? drawers[axis.kind](view, axis) : [drawBars(view, (c) => keyName(view, c))]));
}

/** The three keys that get most of the attention; scores and logits have no parts of a whole. */
function mostWords(view) {
  if (page.kind !== "probs") return "";
  const { values } = weights(view), all = values.reduce((sum, value) => sum + value, 0) || 1;
  const percent = (value) => `${Number(((100 * value) / all).toPrecision(2))} %`;
  const first = [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, 3);
  return `Most is given to ${first.map((c) => `${keyName(view, c)}: ${percent(values[c])}`).join(", ")}.`;
}

function drawText(view, axis) {
  const { values, share } = weights(view), same = view.queryAxis === axis, factor = view.matrix.columns / axis.tokens.length;
  const glued = axis.tokens.some((token) => token.startsWith(" ")) ? " glued" : ""; // these tokens bring their spaces along
  return axis.tokens.map((token, i) => {
    const c = Math.floor(i * factor), strength = Math.sqrt(Math.max(0, share(c)));
    const word = html("span", { class: `${same && c === state.query ? "token query" : "token"}${glued}` }, token);
    word.style.backgroundColor = `color-mix(in srgb, var(--heat) ${Math.round(85 * strength)}%, transparent)`;
    word.addEventListener("pointermove", (event) => showTip(event, [`“${token.trim()}” (${i})`, `attended with ≈ ${short(values[c])}`]));
    word.addEventListener("pointerleave", (event) => showTip(event, null));
    if (same) word.addEventListener("click", () => pin(view, c));
    return word;
  });
}

function drawPicture(view, axis) {
  const { values, share } = weights(view), side = Math.min(360, element("reading").clientWidth), high = (side * axis.rows) / axis.columns;
  const { made, pen } = canvas(side, high, "patches"), photo = new Image(), prefix = axis.prefix ?? 0;
  const patches = Array.from({ length: axis.rows * axis.columns }, (_, i) => i), width = side / axis.columns, height = high / axis.rows;
  photo.onload = () => {
    pen.drawImage(photo, 0, 0, side, high);
    for (const i of patches) {
      pen.fillStyle = `rgba(${MATRIX(0.25 + 0.75 * share(i + prefix)).join(",")},${(0.15 + 0.6 * Math.sqrt(share(i + prefix))).toFixed(3)})`;
      pen.fillRect((i % axis.columns) * width, Math.floor(i / axis.columns) * height, width, height);
    }
    if (view.queryAxis === axis && state.query !== null && state.query >= prefix) {
      const q = state.query - prefix;
      pen.strokeStyle = themeColour("--mark");
      pen.lineWidth = 2;
      pen.strokeRect((q % axis.columns) * width, Math.floor(q / axis.columns) * height, width, height);
    }
  };
  photo.src = `data:image/jpeg;base64,${page.pictures[axis.picture]}`;
  const patchAt = (event) => {
    const box = made.getBoundingClientRect();
    return Math.floor(((event.clientY - box.top) / box.height) * axis.rows) * axis.columns + Math.floor(((event.clientX - box.left) / box.width) * axis.columns) + prefix;
  };
  made.addEventListener("pointermove", (event) => showTip(event, [keyName(view, patchAt(event)), `attended with ≈ ${short(values[patchAt(event)])}`]));
  made.addEventListener("pointerleave", (event) => showTip(event, null));
  if (view.queryAxis === axis) made.addEventListener("click", (event) => pin(view, patchAt(event)));
  return [made];
}

const drawTime = (view) => [drawBars(view, (c) => keyName(view, c))];

/** Attention along the keys, for what has no words and no picture. */
function drawBars(view, name) {
  const { values } = weights(view), width = Math.max(220, element("reading").clientWidth), most = Math.max(...values, 1e-12);
  const root = svg("svg", { width, height: 116, class: "bars" }), step = width / values.length;
  values.forEach((value, c) => root.append(svg("rect", { x: c * step, y: 90 - (85 * value) / most, width: Math.max(0.6, step), height: (85 * value) / most, class: "bar" })));
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const c = Math.min(values.length - 1, Math.round(share * values.length)), anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    root.append(svg("text", { x: share * width, y: 108, "text-anchor": anchor }, name(c)));
  }
  root.addEventListener("pointermove", (event) => {
    const c = Math.min(values.length - 1, Math.max(0, Math.floor(((event.clientX - root.getBoundingClientRect().left) / width) * values.length)));
    showTip(event, [name(c), `attended with ≈ ${short(values[c])}`]);
  });
  root.addEventListener("pointerleave", (event) => showTip(event, null));
  return root;
}
