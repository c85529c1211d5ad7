"use strict";
// Charts work without this script; with it one axis is shown at a time, and pointing says what lies there.
const SIZE = 1000, NEAR = 24;  // units of a chart; pixels within which a mark is met
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";  // two are a height, of 64 · 64
const HIGHEST = 64 * 64 - 2;  // one more is no number
const tip = document.getElementById("tip");

function numbers(path) {  // the points of a path as [[x, y], …]
  return path.getAttribute("d").slice(1).replace(/[hZ].*$/, "").split("L").map(pair => pair.split(" ").map(Number));
}

function range(svg, name) {  // from units to the numbers of an axis
  const [low, high] = svg.dataset[name].split(" ").map(Number);
  return unit => low + (high - low) * unit / SIZE;
}

function say(event, lines) {
  tip.textContent = lines;
  tip.hidden = false;
  const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4);
  const above = event.clientY - tip.offsetHeight - 12;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = (above > 4 ? above : event.clientY + 16) + "px";
}

function choose(chapter, row) {  // show a row alone, or all where it is null
  chapter.classList.toggle("chosen", row !== null);
  for (const mark of chapter.querySelectorAll(".line, .band, .spread g"))
    mark.classList.toggle("on", mark.dataset.row === row);
}

function pressed(chapter) {
  const button = chapter.querySelector(".legend [aria-pressed=true]");
  return button ? button.dataset.row : null;
}

function legend(chapter) {
  const buttons = [...chapter.querySelectorAll(".legend button")];
  for (const button of buttons) {
    button.addEventListener("mouseenter", () => choose(chapter, button.dataset.row));
    button.addEventListener("mouseleave", () => choose(chapter, pressed(chapter)));
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      for (const other of buttons) other.setAttribute("aria-pressed", String(on && other === button));
      choose(chapter, pressed(chapter));
    });
  }
}

function axes(chapter) {
  const box = chapter.querySelector(".axes");
  if (!box) return;
  const show = () => {
    const wanted = box.querySelector(":checked").value;
    for (const figure of chapter.querySelectorAll("[data-axis]")) figure.hidden = figure.dataset.axis !== wanted;
  };
  box.hidden = false;
  box.addEventListener("change", show);
  show();
}

function place(svg, event) {  // of the pointer, in pixels from the chart's corner, and the chart's size
  const box = svg.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top, box.width / SIZE, box.height / SIZE];
}

function nearest(marks, svg, event) {  // the mark and point closest to the pointer, if one is near
  const [left, top, wide, tall] = place(svg, event);
  let best = null, least = NEAR;
  for (const mark of marks)
    for (const [x, y] of mark.points) {
      const away = Math.hypot(x * wide - left, y * tall - top);
      if (away < least) [best, least] = [{path: mark.path, x, y}, away];
    }
  return best;
}

function pointing(svg, found, lost) {  // call found(mark, event) where the pointer is near one of the marks
  let marks = null;
  const look = event => {
    marks ??= [...svg.querySelectorAll(".line, [data-c]")].map(path => ({path, points: numbers(path)}));
    const met = nearest(marks, svg, event);
    if (met) found(met, event); else { tip.hidden = true; lost(); }
  };
  svg.parentElement.addEventListener("pointermove", look);
  svg.parentElement.addEventListener("pointerdown", look);
  svg.parentElement.addEventListener("pointerleave", () => { tip.hidden = true; lost(); });
}

function curves(svg, chapter) {
  const x = range(svg, "x"), y = range(svg, "y");
  pointing(svg, (met, event) => {
    choose(chapter, met.path.dataset.row);
    say(event, `${met.path.dataset.row}: ${y(SIZE - met.y).toPrecision(4)} at ${svg.dataset.label} `
      + Number(x(met.x).toPrecision(5)));
  }, () => choose(chapter, pressed(chapter)));
}

function decoded(letters, rounds) {  // a client's curve as a path
  const points = rounds.map((x, i) => [x, 64 * LETTERS.indexOf(letters[2 * i]) + LETTERS.indexOf(letters[2 * i + 1])]);
  const known = points.filter(([, height]) => height <= HIGHEST);
  return known.length ? "M" + known.map(([x, height]) => x + " " + SIZE * (1 - height / HIGHEST)).join("L") : "";
}

function own(svg, rows, client, name, row) {  // draw the curves of a client called so, that of one row thick
  const figure = svg.closest("figure");
  figure.querySelector(".hint").hidden = true;
  figure.querySelector(".who").textContent = name;
  const rounds = svg.dataset.rounds.split(" ").map(Number);
  [...svg.querySelectorAll(".line")].forEach((line, number) => {
    const found = rows[number].dataset.curves.split(" ").find(text => text.startsWith(client + ":"));
    line.setAttribute("d", found ? decoded(found.slice(client.length + 1), rounds) : "");
    line.classList.toggle("met", line.dataset.row === row);
  });
}

function spread(svg, lines) {
  const x = range(svg, "x"), repetitions = JSON.parse(svg.dataset.repetitions);
  const follow = svg.querySelector(".follow"), dots = [...svg.querySelectorAll("[data-c]")];
  const rows = [...svg.querySelectorAll("g")], said = svg.closest("figure").querySelector(".said");
  const name = client => { const [run, number] = client.split("."); return `client ${number} (${repetitions[run]})`; };
  const forget = () => {
    follow.setAttribute("d", "");
    for (const dot of svg.querySelectorAll(".met")) dot.classList.remove("met");
  };
  pointing(svg, met => {
    forget();
    const clients = met.path.dataset.c.split(" "), more = Number(met.path.dataset.more || 0);
    const same = dots.filter(dot => dot.dataset.c.split(" ").includes(clients[0]));
    for (const dot of same) dot.classList.add("met");
    follow.setAttribute("d", "M" + same.map(dot => numbers(dot)[0].join(" ")).join("L"));
    const row = met.path.parentElement.dataset.row;
    if (lines) own(lines, rows, clients[0], name(clients[0]), row);
    said.textContent = `${row}: ${Number(x(met.x).toPrecision(4))}, ${clients.map(name).join(", ")}`
      + (more ? ` and ${more} more` : "");  // below the chart, where it hides no dots
  }, forget);
}

for (const chapter of document.querySelectorAll(".chapter")) {
  legend(chapter);
  axes(chapter);
  for (const svg of chapter.querySelectorAll("svg.curves")) curves(svg, chapter);
  for (const svg of chapter.querySelectorAll("svg.spread")) spread(svg, chapter.querySelector("svg.own"));
}
addEventListener("beforeprint", () => { for (const one of document.querySelectorAll(".printed")) one.open = true; });
