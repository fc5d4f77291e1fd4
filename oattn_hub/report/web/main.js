// Choosing. One path for every choice: something sets location.hash to "layer-head", and `show` redraws.

const go = (key) => { location.hash = key; };

// What the address asks for. It is ahead of `state` until the page has been redrawn, so keys pressed meanwhile count too.
function asked() {
  const key = decodeURIComponent(location.hash.slice(1));
  const group = page.groups.find((candidate) => candidate.index.has(key)) ?? state.group ?? page.groups[0];
  return { group, head: group.index.get(key) ?? state.head ?? firstHead(group) };
}

/** The head shown before anyone picks one: the first that can go, else the lowest entropy. */
function firstHead(group) {
  const candidates = group.byRank.filter((i) => group.verdictOf(i) === "can go");
  return candidates[0] ?? group.byRank[0];
}

async function show() {
  const { group, head } = asked(), changed = group !== state.group;
  if (!changed && head === state.head) return;
  Object.assign(state, { group, head });
  if (changed) { state.query = null; state.pinned = false; showGroup(group); }
  await showHead(group, head);
}

function showGroup(group) {
  element("group").value = group.name;
  const chosen = Math.min(state.context, group.samples.length - 1);
  element("context").replaceChildren(...group.samples.map((sample, i) => html("option", { value: i }, `context ${sample.batch}`)));
  element("context").value = Math.max(0, chosen);
  drawMap(group);
  drawTree(group);
  for (const [, row] of rowOf) row.classList.toggle("other-group", row.dataset.group !== group.name);
}

async function showHead(group, head) {
  markMap(group, head);
  markTree(group, head);
  markTable();
  drawFacts(group, head);
  drawBatches(group, head);
  drawCoefficients(group, head);
  drawDiffusion(group, head);
  drawAffinity(group, head);
  await drawAttention(group, head);
  if (state.group === group && state.head === head) document.body.dataset.head = group.key(head);
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
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  redraw();
}

async function redraw() {
  if (!state.group) return;
  showGroup(state.group);
  drawCosts();
  await showHead(state.group, state.head);
}

function listen() {
  const on = (id, what, act) => element(id)?.addEventListener(what, act);
  window.addEventListener("hashchange", show);
  document.addEventListener("keydown", globalKeys);
  on("map", "keydown", moveOnMap);
  on("theme", "click", switchTheme);
  on("previous", "click", () => step(-1));
  on("next", "click", () => step(1));
  on("diffusion-colour", "change", () => drawDiffusion(state.group, state.head));
  on("cost-metric", "change", drawCosts);
  on("download", "click", download);
  on("context", "change", (event) => { state.context = Number(event.target.value); state.query = null; state.pinned = false; drawAttention(state.group, state.head); });
  on("map-colour", "change", (event) => { state.colour = event.target.value; drawMap(state.group); markMap(state.group, state.head); });
  on("group", "change", (event) => { const group = page.groups.find((candidate) => candidate.name === event.target.value); go(group.key(firstHead(group))); });
  for (const id of ["layer-filter", "verdict-filter"]) on(id, "change", showRows);
  on("search", "input", () => { const only = showRows(); if (only) go(only); });
  on("heads", "click", (event) => {
    const header = event.target.closest("th[data-column]"), row = event.target.closest("tr[data-head]");
    if (header) sortRows(header.cellIndex);
    else if (row && event.target.tagName !== "A") go(row.dataset.head);
  });
  document.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) navigator.clipboard?.writeText(copy.dataset.copy).then(() => { copy.textContent = "copied"; });
  });
  let width = innerWidth, waiting = null;
  window.addEventListener("resize", () => { // phones resize whenever their address bar goes; only a new width matters
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

async function start() {
  document.documentElement.classList.add("live");
  await openGroups();
  element("group").replaceChildren(...page.groups.map((group) => html("option", {}, group.name)));
  const layers = [...new Set(page.groups.flatMap((group) => group.layerList))].sort((a, b) => a - b);
  element("layer-filter").append(...layers.map((layer) => html("option", {}, layer)));
  openTable();
  listScores();
  listen();
  showRows();
  await show();
  drawCosts();
  document.body.dataset.ready = "yes";
}

start();
