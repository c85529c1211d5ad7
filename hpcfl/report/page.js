"use strict";
// The page is whole without this script. All that is drawn of a method has its data-row, all that is drawn of a client
// its data-client: pointing highlights what has the same, and of the figures over rounds, seconds and floats one is shown.
const NEAR = 12;  // units of a figure within which a mark is met

function choose(chapter, row) {  // show a row alone, or all where it is null
  chapter.classList.toggle("chosen", row !== null);
  for (const mark of chapter.querySelectorAll("[data-row]")) mark.classList.toggle("on", mark.dataset.row === row);
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

function middle(dot) {
  const box = dot.getBBox();
  return [box.x + box.width / 2, box.y + box.height / 2];
}

function dots(svg) {  // as [[element, x, y], …] in the figure's units
  return [...svg.querySelectorAll("[data-client]")].map(dot => [dot, ...middle(dot)]);
}

function points(svg) {  // of all lines, likewise
  return [...svg.querySelectorAll("[data-row] > path")].flatMap(line =>
    [...line.getAttribute("d").matchAll(/([\d.]+) ([\d.]+)/g)].map(([, x, y]) => [line, Number(x), Number(y)]));
}

function pointing(svg, marks, met, lost) {  // call met(element) where the pointer is near a mark, and else lost()
  let known = null;
  const look = event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let nearest = null, least = NEAR;
    for (const [element, x, y] of known ??= marks(svg)) {
      const away = Math.hypot(x - at.x, y - at.y);
      if (away < least) [nearest, least] = [element, away];
    }
    if (nearest) met(nearest); else lost();
  };
  svg.addEventListener("pointermove", look);
  svg.addEventListener("pointerdown", look);
  svg.addEventListener("pointerleave", lost);
}

function curves(svg, chapter) {
  const chosen = element => choose(chapter, element?.closest("[data-row]")?.dataset.row ?? null);
  pointing(svg, points, chosen, () => chosen(svg.querySelector("[data-row]:hover")));
}

function clients(svg, chapter) {
  const ofClient = new Map(), said = chapter.querySelector(".said"), lines = chapter.querySelector(".over-rounds");
  for (const mark of chapter.querySelectorAll("[data-client]")) {
    if (!ofClient.has(mark.dataset.client)) ofClient.set(mark.dataset.client, []);
    ofClient.get(mark.dataset.client).push(mark);
  }
  const path = document.createElementNS(svg.namespaceURI, "polyline");
  svg.append(path);
  let met = [];
  pointing(svg, dots, dot => {
    for (const mark of met) mark.classList.remove("met");
    met = ofClient.get(dot.dataset.client);
    if (lines) lines.hidden = false;
    for (const mark of met) mark.classList.add("met");
    const own = met.filter(mark => svg.contains(mark));
    path.setAttribute("points", own.map(middle).join(" "));
    said.textContent = `${dot.dataset.client}: `
      + own.map(mark => `${mark.closest("[data-row]").dataset.row} ${mark.dataset.value}`).join(", ");
  }, () => {});  // the client stays until another one is met, so that one can look at it below
}

for (const chapter of document.querySelectorAll(".chapter")) {
  axes(chapter);
  for (const svg of chapter.querySelectorAll("[data-axis] svg")) curves(svg, chapter);
  for (const svg of chapter.querySelectorAll(".clients svg")) clients(svg, chapter);
}
addEventListener("beforeprint", () => { for (const one of document.querySelectorAll(".printed")) one.open = true; });
