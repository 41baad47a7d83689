"use strict";
// Draws the embedded figures in the colors of the moment (light, dark, print), and saves the raw data.
(async () => {
  const at = (id) => document.getElementById(id);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const unpacked = async (id) => {
    const bytes = Uint8Array.from(atob(at(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const palette = JSON.parse(at("palette").textContent);
  const figures = at("figures") ? JSON.parse(await unpacked("figures")) : {};
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: true, showTips: false };
  const NARROW_PX = 560;
  const PRINT_WIDTH_PX = 690; // what A4 and Letter leave between the margins at 96 px to the inch

  // Figures are drawn in the light colors; on a dark page each is swapped for its twin.
  const recolor = (value) => {
    if (typeof value === "string") return palette[value] ?? value;
    if (Array.isArray(value)) return value.map(recolor);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, v]) => [key, recolor(v)]));
    return value;
  };

  // On a phone the labels of a row chart would take its width: there they stand above their marks.
  const heights = new Map();
  const narrow = (place, layout) => {
    if (!heights.has(place.id)) heights.set(place.id, parseFloat(place.style.height));
    if (!layout.meta?.labels_above_where_narrow || place.clientWidth >= NARROW_PX) return heights.get(place.id);
    const labels = layout.yaxis.ticktext;
    const height = heights.get(place.id) + 16 * labels.length;
    layout.yaxis.showticklabels = false;
    layout.yaxis.range = [labels.length - 0.5, -1]; // the first label clears the axis
    if (layout.legend.y > 1) layout.legend.y = 1 + ((layout.legend.y - 1) * heights.get(place.id)) / height;
    layout.annotations = labels.map((text, row) => ({
      text: text.replace("<br>", " · "), x: 0, xref: "paper", xanchor: "left", y: row, yshift: 13,
      showarrow: false, font: { size: 11, color: layout.font.color },
    }));
    return height;
  };

  const drawn = new Set();
  const draw = (id, printing = false) => {
    const place = at(id);
    const layout = structuredClone(figures[id].layout);
    layout.height = narrow(place, layout);
    if (printing) layout.width = place.closest(".many") ? PRINT_WIDTH_PX / 2 - 20 : PRINT_WIDTH_PX;
    place.style.height = `${layout.height}px`;
    const dress = printing || !dark.matches ? structuredClone : recolor;
    Plotly.react(place, dress(figures[id].data), dress(layout), config);
    drawn.add(id);
  };
  const closed = (chart) => chart.closest("details:not([open])") !== null;
  const drawOpen = () => all(".chart").filter((c) => !closed(c) && !drawn.has(c.id)).forEach((c) => draw(c.id));
  const redraw = () => { const ids = [...drawn]; drawn.clear(); ids.filter((id) => !closed(at(id))).forEach((id) => draw(id)); };

  // Charts of open sections are drawn at once, those of closed ones when they are opened.
  const sections = all("details.section");
  sections.forEach((section) => section.addEventListener("toggle", drawOpen));
  const reveal = () => {
    const target = location.hash.length > 1 && !location.hash.includes("=") ? at(decodeURIComponent(location.hash.slice(1))) : null;
    const section = target?.closest("details.section");
    if (section) section.open = true;
    target?.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  // A print shows the first screen, what a reader of paper needs, and whatever has been opened.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = all("details").filter((section) => !section.open && "printed" in section.dataset);
    opened.forEach((section) => { section.open = true; });
    all(".chart").filter((chart) => !closed(chart)).forEach((chart) => draw(chart.id, true));
  });
  window.addEventListener("afterprint", () => {
    opened.forEach((section) => { section.open = false; });
    redraw();
  });
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if ((width < NARROW_PX) !== (window.innerWidth < NARROW_PX)) redraw();
    width = window.innerWidth;
  });
  dark.addEventListener("change", redraw);

  at("save").addEventListener("click", async () => {
    const raw = JSON.parse(await unpacked("raw-data"));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(raw, null, 1)], { type: "application/json" }));
    link.download = at("save").dataset.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  if (at("plotly")) {
    const library = document.createElement("script");
    library.textContent = await unpacked("plotly");
    document.head.append(library);
    drawOpen();
  }
  reveal();
  document.documentElement.dataset.ready = "yes";
})();
