// The table of all heads: written by the server, sorted and filtered here, downloaded as the CSV that `oattn heads` prints.

const rowOf = new Map();

function openTable() {
  const body = element("heads").tBodies[0];
  for (const row of body.rows) rowOf.set(row.dataset.head, row);
}

function sortValue(row, column) {
  const cell = row.cells[column].dataset.value ?? row.cells[column].textContent, value = Number(cell);
  return cell === "" ? Infinity : Number.isNaN(value) ? cell : value;
}

function wanted(row) {
  const query = element("search").value.trim().toLowerCase(), layer = element("layer-filter").value, verdict = element("verdict-filter").value;
  const [rowLayer] = row.dataset.head.split("-");
  if (layer !== "all" && rowLayer !== layer) return false;
  if (verdict === "low" && row.dataset.low !== "1") return false;
  if (verdict !== "all" && verdict !== "low" && row.dataset.verdict !== verdict) return false;
  if (!query) return true;
  const numbers = query.match(/^\D*(\d+)\s*[-.,: ]\D*(\d+)$/);
  if (numbers) return row.dataset.head === `${Number(numbers[1])}-${Number(numbers[2])}`;
  return `${row.dataset.name} layer ${row.dataset.head.replace("-", ", head ")}`.toLowerCase().includes(query);
}

function showRows() {
  let count = 0, last = null;
  for (const row of rowOf.values()) {
    row.hidden = !wanted(row);
    if (!row.hidden) { count += 1; last = row.dataset.head; }
  }
  element("shown").textContent = `${count} of ${rowOf.size} heads`;
  return count === 1 ? last : null;
}

function sortRows(column) {
  const down = state.sort?.column === column && !state.sort.down, sign = down ? -1 : 1, body = element("heads").tBodies[0];
  state.sort = { column, down };
  const rows = [...rowOf.values()].sort((a, b) => {
    const [x, y] = [sortValue(a, column), sortValue(b, column)];
    return (x < y ? -1 : x > y ? 1 : 0) * sign;
  });
  body.append(...rows);
  for (const [i, header] of [...element("heads").tHead.rows[0].cells].entries()) {
    header.setAttribute("aria-sort", i === column ? (down ? "descending" : "ascending") : "none");
  }
}

function markTable() {
  const key = state.group.key(state.head);
  for (const row of rowOf.values()) row.classList.toggle("current", row.dataset.head === key);
}

function download() {
  const link = html("a", { href: URL.createObjectURL(new Blob([page.csv], { type: "text/csv" })), download: `${page.file}-heads.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
