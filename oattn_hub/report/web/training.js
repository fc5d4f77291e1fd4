"use strict";
// Plays a training: the slider chooses a moment; maps and charts follow it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const last = data.steps.length - 1;
  const slider = document.getElementById("moment"), button = document.getElementById("play"), output = document.getElementById("step");
  const make = (name, parent, text) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };

  function drawMap(group) {
    const section = make("section", document.getElementById("maps"));
    make("h2", section, group.name);
    const frame = make("div", section);
    frame.className = "scroll";
    const table = make("table", frame);
    table.className = "map";
    const layers = [...new Set(group.layers)].sort((a, b) => a - b), width = Math.max(...group.heads) + 1;
    const head = make("tr", table);
    make("th", head, "layer");
    for (let index = 0; index < width; index++) make("th", head, index);
    const places = new Map();
    for (const layer of layers) {
      const row = make("tr", table);
      make("th", row, layer);
      for (let index = 0; index < width; index++) places.set(`${layer}.${index}`, make("td", row));
    }
    const all = group.entropies.flat(), low = Math.min(...all), spread = Math.max(...all) - low || 1;
    return moment => group.layers.forEach((layer, index) => {
      const name = `${layer}.${group.heads[index]}`, value = group.entropies[moment][index], place = places.get(name);
      place.style.background = `color-mix(in oklab, var(--heat) ${Math.round(100 * (value - low) / spread)}%, var(--tint))`;
      place.title = `${name}: entropy ${value}, rank ${group.ranks[moment][index] + 1} of ${group.layers.length}`;
    });
  }

  function drawChart(name, values) {
    const figure = make("figure", document.getElementById("charts"));
    const caption = make("figcaption", figure);
    make("span", caption, name);
    const shown = make("span", caption);
    const known = values.filter(value => value !== null), low = Math.min(...known), spread = Math.max(...known) - low || 1;
    const x = step => 100 * (step - data.steps[0]) / (data.steps[last] - data.steps[0] || 1);
    const points = values.map((value, i) => value === null ? "" : `${x(data.steps[i])},${58 - 56 * (value - low) / spread}`);
    figure.insertAdjacentHTML("beforeend", `<svg viewBox="0 0 100 60" preserveAspectRatio="none" role="img"><polyline points="${points.filter(Boolean).join(" ")}"/><line y1="0" y2="60"/></svg>`);
    const line = figure.querySelector("line");
    figure.querySelector("svg").setAttribute("aria-label", name);
    return moment => {
      line.setAttribute("x1", x(data.steps[moment]));
      line.setAttribute("x2", x(data.steps[moment]));
      shown.textContent = values[moment] === null ? "" : Number(values[moment].toPrecision(4));
    };
  }

  const followers = data.groups.map(drawMap);
  for (const [name, values] of Object.entries(data.numbers)) if (!name.includes("/layer_")) followers.push(drawChart(name, values));

  function show(moment) {
    slider.value = moment;
    output.textContent = `step ${data.steps[moment]}`;
    followers.forEach(follow => follow(moment));
  }

  let timer = null;
  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => Number(slider.value) < last ? show(Number(slider.value) + 1) : play(false), Math.max(60, Math.min(600, 8000 / (last + 1)))) : null;
    button.textContent = on ? "Pause" : "Play";
    button.setAttribute("aria-pressed", String(on));
  }

  slider.addEventListener("input", () => { play(false); show(Number(slider.value)); });
  button.addEventListener("click", () => {
    if (timer === null && Number(slider.value) === last) show(0);
    play(timer === null);
  });
  document.addEventListener("keydown", event => {
    if (event.key === " " && event.target === document.body) { event.preventDefault(); button.click(); }
  });
  document.documentElement.classList.add("live");
  show(last);
  document.body.dataset.ready = "";
})();
