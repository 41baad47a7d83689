"use strict";
// Draws the embedded figures in the colours of the moment (light, dark, print) and saves the raw data.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const palette = read("palette");
  const figures = read("figures");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: true, showTips: false };
  const NARROW_PX = 560;
  const PRINT_WIDTH_PX = 690; // what A4 and Letter leave between the margins at 96 px to the inch

  // Figures are drawn in the light colours; on a dark page each is swapped for its twin.
  const recolour = (value) => {
    if (typeof value === "string") return palette[value] ?? value;
    if (Array.isArray(value)) return value.map(recolour);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, v]) => [key, recolour(v)]));
    return value;
  };

  // On a phone the labels of a row chart would take its width: there they stand above their marks.
  const heights = new Map();
  const narrow = (at, layout) => {
    if (!heights.has(at.id)) heights.set(at.id, at.clientHeight);
    if (!layout.meta?.labels_above_where_narrow || at.clientWidth >= NARROW_PX) return heights.get(at.id);
    const labels = layout.yaxis.ticktext;
    layout.yaxis.showticklabels = false;
    layout.annotations = labels.map((text, row) => ({
      text: text.replace("<br>", " · "), x: 0, xref: "paper", xanchor: "left", y: row, yshift: 15,
      showarrow: false, font: { size: 11, color: layout.font.color },
    }));
    return heights.get(at.id) + 8 * labels.length;
  };

  const draw = (id, printing) => {
    const at = document.getElementById(id);
    const layout = structuredClone(figures[id].layout);
    const many = at.closest(".many") !== null;
    if (printing) layout.width = many ? PRINT_WIDTH_PX / 2 - 20 : PRINT_WIDTH_PX;
    layout.height = narrow(at, layout);
    at.style.height = `${layout.height}px`;
    const dress = printing || !dark.matches ? structuredClone : recolour;
    Plotly.react(at, dress(figures[id].data), dress(layout), config);
    drawn.add(id);
  };

  // A chart is drawn when it comes near the window: the page opens at once, however many it holds.
  const drawn = new Set();
  const watcher = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting && !drawn.has(entry.target.id))
      .forEach((entry) => draw(entry.target.id, false)),
    { rootMargin: "600px" });
  const redraw = () => drawn.forEach((id) => draw(id, false));

  const folded = () => document.querySelectorAll("details:not([open])");
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...folded()];
    opened.forEach((details) => { details.open = true; });
    Object.keys(figures).forEach((id) => draw(id, true));
  });
  window.addEventListener("afterprint", () => {
    opened.forEach((details) => { details.open = false; });
    redraw();
  });
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if ((width < NARROW_PX) !== (window.innerWidth < NARROW_PX)) redraw();
    width = window.innerWidth;
  });
  dark.addEventListener("change", redraw);

  const save = (kind, name) => {
    const raw = read("raw-data");
    const [text, type] = kind === "csv" ? [raw.csv, "text/csv"] : [JSON.stringify(raw.data, null, 1), "application/json"];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  document.querySelectorAll("[data-save]").forEach((button) =>
    button.addEventListener("click", () => save(button.dataset.save, button.dataset.name)));

  Object.keys(figures).forEach((id) => watcher.observe(document.getElementById(id)));
  document.documentElement.dataset.ready = "yes";
})();
