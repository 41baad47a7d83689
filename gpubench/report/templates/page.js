// Draws the embedded figures in the colors of the page (light, dark, print), and saves the raw data.
(async () => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const palette = JSON.parse(at("palette").textContent);
  const figures = at("figures") ? JSON.parse(await unpacked("figures")) : {};
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const NARROW_PX = 560;
  const PRINT_WIDTH_PX = 690; // the width of A4 and Letter between the margins at 96 px per inch

  // Figures have the light colors; on a dark page each color is replaced by its dark equivalent.
  const recolor = (figure) => JSON.parse(JSON.stringify(figure, (_, value) => palette[value] ?? value));

  // On a phone the labels of a row chart would take up its width, so they go above their marks.
  const narrow = (place, layout) => {
    const wide = Number(place.dataset.height), labels = layout.yaxis?.ticktext;
    if (!layout.meta?.labels_above_where_narrow || place.clientWidth >= NARROW_PX) return wide;
    const height = wide + 16 * labels.length;
    layout.yaxis.showticklabels = false;
    layout.yaxis.range = [labels.length - 0.5, -1]; // room for the first label above the axis
    if (layout.legend.y > 1) layout.legend.y = 1 + ((layout.legend.y - 1) * wide) / height;
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
    const colored = printing || !dark.matches ? structuredClone : recolor;
    Plotly.react(place, colored(figures[id].data), colored(layout), { displayModeBar: false, responsive: true, showTips: false });
    drawn.add(id);
  };
  const closed = (chart) => chart.closest("details:not([open])") !== null;
  const drawOpen = () => all(".chart").filter((c) => !closed(c) && !drawn.has(c.id)).forEach((c) => draw(c.id));
  const redraw = () => { drawn.clear(); drawOpen(); };

  // Charts in open sections are drawn immediately; those in closed sections, when the section is opened.
  all("details.section").forEach((section) => section.addEventListener("toggle", drawOpen));
  const reveal = () => {
    const target = location.hash.length > 1 && !location.hash.includes("=") ? at(decodeURIComponent(location.hash.slice(1))) : null;
    target?.closest("details.section")?.setAttribute("open", "");
    target?.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  // A printout has the first screen, the sections marked for print, and all open sections.
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
  const drawAnswer = await answered;
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (width !== window.innerWidth) drawAnswer?.();
    if ((width < NARROW_PX) !== (window.innerWidth < NARROW_PX)) redraw();
    width = window.innerWidth;
  });
  document.documentElement.dataset.ready = "yes";
})();
