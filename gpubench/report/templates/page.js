"use strict";
// Draws the embedded figures in the colours of the moment (light, dark, print) and saves the raw data.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const palette = read("palette");
  const figures = read("figures");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: true, showTips: false };
  const PRINT_WIDTH_PX = 690; // what A4 and Letter leave between the margins at 96 px to the inch

  // Figures are drawn in the light colours; on a dark page each is swapped for its twin.
  const recolour = (value) => {
    if (typeof value === "string") return palette[value] ?? value;
    if (Array.isArray(value)) return value.map(recolour);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, v]) => [key, recolour(v)]));
    return value;
  };

  const draw = (printing) => {
    for (const [id, figure] of Object.entries(figures)) {
      const at = document.getElementById(id);
      const copy = printing || !dark.matches ? structuredClone(figure) : recolour(figure);
      const many = at.closest(".many") !== null;
      if (printing) Object.assign(copy.layout, { width: many ? PRINT_WIDTH_PX / 2 : PRINT_WIDTH_PX });
      Plotly.react(at, copy.data, { ...copy.layout, height: at.clientHeight }, config);
    }
  };

  const folded = () => document.querySelectorAll("details:not([open])");
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...folded()];
    opened.forEach((details) => { details.open = true; });
    draw(true);
  });
  window.addEventListener("afterprint", () => {
    opened.forEach((details) => { details.open = false; });
    draw(false);
  });
  dark.addEventListener("change", () => draw(false));

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

  draw(false);
  document.documentElement.dataset.ready = "yes";
})();
