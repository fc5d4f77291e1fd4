// The report as the page holds it. Arrays come deflated and in base64 (see page.py); heads are numbered as on the head axis.

const page = JSON.parse(element("data").textContent);
const TYPES = { uint8: Uint8Array, uint16: Uint16Array, int32: Int32Array, float32: Float32Array };
const state = { group: null, head: null, context: 0, query: null, colour: page.measured ? "cost" : "entropy", sort: null };
const ENTROPY = ramp(page.scales.entropy), COST = ramp(page.scales.cost), LAYER = ramp(page.scales.layer), MATRIX = ramp(page.scales.matrix);
const SERIES = page.series;

async function inflate(data) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function unpack({ dtype, shape, data }) {
  const values = new TYPES[dtype](await inflate(data)), width = values.length / shape[0];
  return { values, shape, row: (i) => values.subarray(i * width, (i + 1) * width) };
}

async function openGroups() {
  for (const group of page.groups) {
    await Promise.all(Object.entries(group.arrays).map(async ([name, packed]) => { group[name] = await unpack(packed); }));
    group.size = group.layers.values.length;
    group.key = (i) => `${group.layers.values[i]}-${group.heads.values[i]}`;
    group.name_ = (i) => `${group.layers.values[i]}.${group.heads.values[i]}`;
    group.label = (i) => `layer ${group.layers.values[i]}, head ${group.heads.values[i]}`;
    group.index = new Map(Array.from({ length: group.size }, (_, i) => [group.key(i), i]));
    group.byRank = [...group.index.values()].sort((a, b) => group.rank.values[a] - group.rank.values[b]);
    group.layerList = [...new Set(group.layers.values)];
    group.verdictOf = (i) => page.verdicts[group.verdict.values[i]];
  }
}

/** Affinity of two heads, of very many that of their landmarks; only the triangle below the diagonal travels. */
function affinity(group, first, second) {
  const [a, b] = group.landmarks ? [group.landmarks.values[first], group.landmarks.values[second]] : [first, second];
  if (a === b) return 1;
  const high = Math.max(a, b), low = Math.min(a, b);
  return group.affinityTriangle.values[(high * (high - 1)) / 2 + low] / 255;
}

/** What is said about a head wherever a pointer rests on it. */
function headWords(group, i) {
  const lines = [`${group.label(i)[0].toUpperCase()}${group.label(i).slice(1)}`];
  if (group.verdictOf(i)) lines.push(group.verdictOf(i));
  if (group.cost && !Number.isNaN(group.cost.values[i])) lines.push(`removed alone: ${short(group.cost.values[i])}${group.costLow ? ` (95 %: ${short(group.costLow.values[i])} to ${short(group.costHigh.values[i])})` : ""} ${page.metric}`);
  lines.push(`entropy ${short(group.entropy.values[i])} (95 %: ${short(group.entropyLow.values[i])} to ${short(group.entropyHigh.values[i])})`);
  return lines;
}

/** Where a head lies on a colour scale, 0 … 1; null if it was not measured. */
function shade(group, what) {
  if (what === "cost") {
    const known = Array.from(group.cost.values).filter((v) => !Number.isNaN(v)), high = Math.max(...known, 1e-9);
    const low = Math.max(Math.min(...known), high / 1000), scale = logarithmic([low, high], [0, 1]);
    return { low, high, of: (i) => (Number.isNaN(group.cost.values[i]) ? null : scale(group.cost.values[i])), colour: COST };
  }
  const values = (what === "layer" ? group.layers : group.entropy).values, low = Math.min(...values), high = Math.max(...values);
  const scale = linear([low, high], [0, 1]);
  return { low, high, of: (i) => scale(values[i]), colour: what === "layer" ? LAYER : ENTROPY };
}
