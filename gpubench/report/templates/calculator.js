// The page's question and its answer. The URL keeps the question, and each change redraws the answer.
const at = (id) => document.getElementById(id);
const unpacked = async (id) => {
  const bytes = Uint8Array.from(atob(at(id).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};
const answered = (async () => {
  if (!at("calculator")) return;
  const data = JSON.parse(await unpacked("calculator"));
  const rank = ranker(data), form = at("ask"), MOST_DOTS = 40, MOST_ROWS = 40;
  const make = (name, attributes = {}, ...inside) => {
    const element = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    element.append(...inside);
    return element;
  };

  // --- figures in words, as in gpubench.units and gpubench.interval ----------------------------------------
  const digitsOf = (value) => Math.floor(Math.log10(Math.abs(value)));
  const fixed = (value, places) => value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  const number = (value, digits = 3) => {
    if (!value) return "0";
    const rounded = Number(value.toPrecision(digits));
    return fixed(rounded, Math.max(0, digits - 1 - digitsOf(rounded)));
  };
  const toPlace = (value, exponent) => Math.abs(value) < 10 ** (exponent + 1) ? number(value, 2)
    : fixed(Math.round(value / 10 ** exponent) * 10 ** exponent, Math.max(0, -exponent));
  const interval = ([low, value, high], unit = "") => {
    if (!(Number.isFinite(low) && high > low)) return number(value) + unit;
    const exponent = Math.max(digitsOf(Math.max(value, high)) - 5, digitsOf((high - low) / 10));
    const [l, v, h] = [low, value, high].map((each) => toPlace(each, exponent));
    return `${v}${unit} (${l} to ${h})`;
  };
  const hoursInWords = (ends) => { const [, of, unit] = data.units.find(([least]) => ends[1] >= least); return interval(ends.map((each) => each / of), unit); };
  const duration = (hours) => hoursInWords([NaN, hours, NaN]);
  const usd = (value) => (Math.abs(value) >= 1 || !value ? `$${fixed(value, 2)}` : `$${number(value)}`);
  const usdInWords = ([low, value, high]) => (Number.isFinite(low) && high > low ? `${usd(value)} (${usd(low)} to ${usd(high)})` : usd(value));
  const ranged = (words) => words.replace(" to ", "–"); // kept short, so that the three answers fit on one screen
  const chance = (p) => (p > 0.99 && p < 1 ? "> 99 %" : p > 0 && p < 0.01 ? "< 1 %" : `${fixed(p * 100, 0)} %`);
  const many = (samples) => (samples >= 1e9 ? `${number(samples / 1e9)} billion` : samples >= 1e6 ? `${number(samples / 1e6)} million` : fixed(samples, 0));
  const say = (id, fields = {}) => data.sentences[id].replace(/\{(\w+)\}/g, (_, name) => fields[name]);
  const gpuOf = ({ offer }) => data.gpus[offer.gpu].name;
  const gpusOf = (row) => `${row.offer.count}x ${gpuOf(row)}`;
  const basisOf = ({ gpu, isModeled }) => (gpu.is_guess ? "guess" : isModeled ? "predicted" : gpu.basis);
  const cells = (row) => ({
    gpus: gpusOf(row), seller: row.offer.who, hours: hoursInWords(row.hours), usd: usdInWords(row.usd), price: `${usd(row.offer.usd)}/h`,
    memory: data.gpus[row.offer.gpu].memory, basis: data.bases[basisOf(row)],
  });

  // --- the question: its controls, and the URL --------------------------------------------------------------
  const begin = data.begin, labels = [...new Set(data.cases.map((each) => each.label))];
  const casesOf = (model) => data.cases.filter((each) => each.label === model);
  const caseOf = ({ model, precision }) => casesOf(model).find((each) => each.precision === precision) ?? casesOf(model)[0];
  const usual = (model) => casesOf(model)[0].samples;
  const unmistakable = (value) => `${value}`.replace(/^[1-9]\d{0,2}\.\d{3}$/, "$&0"); // 1.800 can mean thousands
  const choices = {
    model: labels.map((each) => [each, each]), have: [["", data.labels.nothing], ...data.offers.filter((offer) => offer.have).map((offer) => [offer.have, gpusOf({ offer })])],
    seller: [["", data.labels.anybody], ...Object.entries(data.sellers)], region: [["", data.labels.anywhere], ...Object.entries(data.regions)],
  };
  const fill = (name, options) => form.elements[name].replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  Object.entries(choices).forEach(([name, options]) => fill(name, options));
  const AMOUNT = new RegExp(`^${form.elements.worth.pattern}$`); // the browser checks the fields by the same pattern
  const amount = (text) => {
    const [, digits, step] = AMOUNT.exec(text) ?? [];
    return digits ? Number(digits.replaceAll(",", "")) * { "": 1, k: 1e3, m: 1e6, g: 1e9, b: 1e9 }[step.toLowerCase()] : null;
  };
  const some = (text) => amount(text) || null; // 0 is not a valid job, budget or deadline
  const READ = { samples: some, worth: amount, budget: some, deadline: some, spot: (text) => text === "1" };
  const parsed = (name, text) => (name in READ ? READ[name](text) : text || null);
  const completed = (asked) => ({
    ...asked, precision: caseOf(asked).precision, samples: asked.samples ?? usual(asked.model), worth: asked.worth ?? begin.worth,
  });
  const read = () => {
    const given = new URLSearchParams(location.hash.slice(1)), asked = { ...begin };
    for (const name of Object.keys(begin)) if (given.has(name)) asked[name] = parsed(name, given.get(name));
    for (const [name, options] of Object.entries(choices))
      if (!options.some(([value]) => value === asked[name])) asked[name] = name === "model" ? begin.model : null;
    if (asked.model !== begin.model && !given.has("samples")) asked.samples = null;
    return completed(asked);
  };
  const write = (asked) => {
    const changed = Object.entries(asked).filter(([name, value]) => value !== begin[name]);
    const texts = changed.map(([name, value]) => [name, value === true ? 1 : value === false ? 0 : unmistakable(value ?? "")]);
    history.replaceState(null, "", changed.length ? `#${new URLSearchParams(texts)}` : location.pathname + location.search);
  };
  const show = (asked) => {
    const of = casesOf(asked.model);
    fill("precision", of.map((each) => [each.precision, each.precision]));
    for (const [name, value] of Object.entries(asked)) {
      const control = form.elements[name];
      if (control.type === "checkbox") control.checked = value;
      else if (control !== document.activeElement) control.value = unmistakable(value?.toLocaleString("en-US", { maximumFractionDigits: 20 }) ?? "");
    }
    at("unit").textContent = of[0].unit[0].toUpperCase() + of[0].unit.slice(1);
  };
  const command = (asked) => {
    const quoted = (text) => (/^[\w.+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
    const given = Object.entries(data.options).filter(([name]) => asked[name] !== null && asked[name] !== false);
    const options = given.map(([name, option]) => (asked[name] === true ? option : `${option} ${quoted(unmistakable(asked[name]))}`));
    return ["gpubench rank", ...caseOf(asked).workloads.map(quoted), ...options, ...data.filters.map(quoted)].join(" ");
  };

  // --- the answer -----------------------------------------------------------------------------------------------
  const sentences = ({ answers, rows, named }) => {
    const { cheapest, sensible, fastest } = answers, said = [];
    for (const [id, { row: slow }, { row: fast }] of [["exchange", cheapest, sensible], ["exchange_next", sensible, fastest]]) {
      const more = fast.usd[1] - slow.usd[1], saved = slow.hours[1] - fast.hours[1];
      if (more > 0 && saved > data.alike * slow.hours[1]) said.push(say(id, { more_usd: usd(more), hours: duration(saved), usd_per_hour: usd(more / saved) }));
    }
    if (new Set(rows.map((row) => row.offer.gpu)).size === 1) said.push(say("one_gpu_left"));
    if (Date.now() > Date.parse(data.fresh_until)) said.push(say("page_old", { day: data.as_of }));
    return [...(location.hash ? [] : data.opening), ...said, ...named.filter(({ offer }) => offer.doubt).map((row) => say("price_doubt_short", { gpu: gpuOf(row), doubt: row.offer.doubt }))];
  };
  const relaxed = ({ usd: dollars, hours }, asked) => {
    const up = (value) => number(value * 1.005), said = [say("nothing_meets")];
    if (asked.budget && Number.isFinite(dollars)) said.push(say("relax_budget", { usd: `$${up(dollars)}` }));
    if (asked.deadline && Number.isFinite(hours)) said.push(say("relax_deadline", { hours: up(hours) }));
    return said;
  };
  const tableRow = (head, figures) => make("tr", {}, make("th", { scope: "row" }, head),
    ...Object.entries(figures).map(([name, text]) => make("td", ["hours", "usd", "price", "memory"].includes(name) ? { class: "number" } : {}, text)));
  const likely = ({ row, p, rival }) => p === null ? "" : chance(p) + (rival ? ` (${data.labels.or} ${(rival.row.offer.count > 1 || rival.row.offer.gpu === row.offer.gpu ? gpusOf : gpuOf)(rival.row)} ${chance(rival.p)})` : "");
  const titles = (row) => row.answersTo.map((name) => data.titles[name]).join(" · ");
  const drawThree = ({ named, answers }) => at("three").tBodies[0].replaceChildren(...named.map((row) => {
    const { gpus, seller, hours, usd: cost, basis } = cells(row), chances = row.answersTo.map((name) => likely(answers[name]));
    const p = new Set(chances).size === 1 ? chances[0] : chances.map((words, i) => `${data.titles[row.answersTo[i]].toLowerCase()} ${words}`).join(" · ");
    return tableRow(titles(row), { gpus, seller, hours: ranged(hours), usd: ranged(cost), basis, p });
  }));

  // --- the chart: hours to the right, dollars upward, both on logarithmic axes ---------------------------------
  const svg = at("hero"), tip = at("tip"), HEIGHT = 420, EDGE = { left: 62, right: 24, top: 18, bottom: 44 };
  let picked = [], last = null;
  const legend = (kinds) => {
    const mark = (shape, attributes, words) => make("span", {}, make("svg:svg", { viewBox: "0 0 20 14" }, make(`svg:${shape}`, attributes)), words);
    at("legend").replaceChildren(
      ...kinds.map((kind) => mark("circle", { class: kind, cx: 10, cy: 7, r: 5 }, data.bases[kind])), mark("ellipse", { class: "ellipse", cx: 10, cy: 7, rx: 9, ry: 6 }, data.labels.shade), mark("path", { class: "frontier", d: "M1 7H19" }, data.labels.trade_offs));
  };
  const drawChart = ({ rows, best, named }) => {
    const edge = rank.frontier(rows), most = best.slice(0, MOST_DOTS), shown = new Set(most.map(({ key }) => key));
    const heads = [...new Set([...named, ...most, ...edge.filter(({ key }) => !shown.has(key))])];
    const others = form.elements.every.checked ? rows.filter((row) => !heads.includes(row)) : [];
    const dots = [...heads, ...others], width = Math.max(320, svg.clientWidth || 900);
    const outlines = named.map(rank.outline);
    const span = (figureOf, axis) => {
      const ends = dots.flatMap((row) => [row[figureOf][1] / 1.12, row[figureOf][1] * 1.12]).concat(outlines.flat().map((point) => point[axis]));
      return [Math.min(...ends) / 1.02, Math.max(...ends) * 1.02];
    };
    const [x0, x1] = span("hours", 0), [y0, y1] = span("usd", 1);
    const x = (hours) => EDGE.left + ((width - EDGE.left - EDGE.right) * Math.log(hours / x0)) / Math.log(x1 / x0);
    const y = (dollars) => HEIGHT - EDGE.bottom - ((HEIGHT - EDGE.top - EDGE.bottom) * Math.log(dollars / y0)) / Math.log(y1 / y0);
    const parts = [], text = (where, words) => parts.push(make("svg:text", where, words));
    const grid = (ticks, [low, high], most, lineAt, wordsAt) => {
      const inside = ticks.filter(([value]) => value >= low && value <= high);
      inside.filter((_, i) => i % Math.ceil(inside.length / most) === 0).forEach(([value, words]) => {
        parts.push(make("svg:line", { class: "grid", ...lineAt(value) }));
        text(wordsAt(value), words);
      });
    };
    grid(data.ticks.hours, [x0, x1], width / 90, (value) => ({ x1: x(value), x2: x(value), y1: EDGE.top, y2: HEIGHT - EDGE.bottom }),
      (value) => ({ x: x(value), y: HEIGHT - EDGE.bottom + 16, class: "tick middle" }));
    grid(data.ticks.usd, [y0, y1], 8, (value) => ({ x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
      (value) => ({ x: EDGE.left - 6, y: y(value) + 4, class: "tick end" }));
    text({ x: (EDGE.left + width) / 2, y: HEIGHT - 8, class: "tick middle" }, data.labels.hours);
    text({ x: 14, y: HEIGHT / 2, class: "tick middle", transform: `rotate(-90 14 ${HEIGHT / 2})` }, data.labels.usd);
    const boxes = dots.map((row) => [x(row.hours[1]) - 5, y(row.usd[1]) - 5, x(row.hours[1]) + 5, y(row.usd[1]) + 5]); // where no label may go
    let before = null, path = "";
    edge.map((row) => [x(row.hours[1]), y(row.usd[1])]).forEach(([px, py]) => {
      path += before ? `H${px}V${py}` : `M${px},${py}`;
      if (before) boxes.push([before[0], before[1] - 1, px, before[1] + 1], [px - 1, before[1], px + 1, py]);
      before = [px, py];
    });
    parts.push(make("svg:path", { class: "frontier", d: path }, make("svg:title", {}, data.labels.frontier)));
    outlines.forEach((points) => parts.push(make("svg:polygon", { class: "ellipse", points: points.map(([hours, dollars]) => `${x(hours)},${y(dollars)}`).join(" ") })));
    const pen = document.createElement("canvas").getContext("2d"), { fontFamily } = getComputedStyle(svg);
    const place = (row, words, isAnswer) => {
      pen.font = `${isAnswer ? "650 12.5px" : "11px"} ${fontFamily}`;
      const [px, py] = [x(row.hours[1]), y(row.usd[1])], long = pen.measureText(words).width;
      const spots = [[10, 4], [-long - 10, 4], [-long / 2, -11], [-long / 2, 21], [9, -9], [9, 18], [-long - 9, -9], [-long - 9, 18]];
      const boxAt = ([dx, dy]) => [px + dx - 2, py + dy - 11, px + dx + long, py + dy + 3];
      const covered = spots.map((spot) => {
        const box = boxAt(spot), inside = box[0] > EDGE.left && box[2] < width - 2 && box[1] > 2 && box[3] < HEIGHT - EDGE.bottom;
        return inside ? boxes.filter((o) => box[0] < o[2] && box[2] > o[0] && box[1] < o[3] && box[3] > o[1]).length : Infinity;
      });
      const least = Math.min(...covered), free = spots[covered.indexOf(least)];
      if (least && !isAnswer) return;
      boxes.push(boxAt(free));
      text({ x: px + free[0], y: py + free[1], class: isAnswer ? "label answer" : "label" }, words);
    };
    heads.forEach((row) => (named.includes(row) ? place(row, `${titles(row)}: ${gpusOf(row)}`, true) : place(row, gpusOf(row), false)));
    [...dots].reverse().forEach((row) => {
      const isHead = heads.includes(row), [px, py] = [x(row.hours[1]), y(row.usd[1])];
      const kind = [basisOf(row), named.includes(row) ? "answer" : "", isHead ? "" : "minor", picked.includes(row.place) ? "picked" : ""];
      const about = [...Object.values(cells(row)), row.offer.name, say("price_age_short", { days: row.offer.age_days })];
      const dot = make("svg:circle", { class: kind.filter(Boolean).join(" "), cx: px, cy: py, r: named.includes(row) ? 7 : isHead ? 5 : 3, role: "button", "aria-label": about.join("; "), "data-place": row.place, tabindex: isHead ? 0 : -1 });
      const over = () => { tip.replaceChildren(...about.map((line) => make("div", {}, line))); tip.hidden = false; tip.style.left = `${Math.min(px + 12, width - 190)}px`; tip.style.top = `${py + 12 + svg.offsetTop}px`; };
      const out = () => { tip.hidden = true; };
      for (const [event, act] of [["mouseenter", over], ["focus", over], ["mouseleave", out], ["blur", out]]) dot.addEventListener(event, act);
      const pick = () => {
        picked = picked.includes(row.place) ? picked.filter((each) => each !== row.place) : [...picked.slice(-1), row.place];
        drawPair(rows);
        svg.querySelectorAll("circle").forEach((other) => other.classList.toggle("picked", picked.includes(Number(other.dataset.place))));
      };
      dot.addEventListener("click", pick);
      dot.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } });
      parts.push(dot);
    });
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.replaceChildren(...parts);
    svg.append(...svg.querySelectorAll("text.answer")); // so that no dot hides the name of an answer
    legend(Object.keys(data.bases).filter((kind) => dots.some((row) => basisOf(row) === kind)));
  };
  const drawPair = (rows) => {
    const pair = picked.map((each) => rows.find((row) => row.place === each)).filter(Boolean);
    at("pair").textContent = say("pair_how");
    if (pair.length < 2) return;
    const [quick, slow] = pair[0].hours[1] <= pair[1].hours[1] ? pair : [pair[1], pair[0]];
    const [faster, dearer] = rank.against(quick, slow), named = (row) => `${gpusOf(row)} from ${row.offer.who}`;
    at("pair").textContent = say("pair", { a: named(quick), b: named(slow), times: interval(faster), ratio: interval(dearer) });
  };

  // --- from question to answer --------------------------------------------------------------------------------
  const answer = () => {
    const asked = read(), each = caseOf(asked), found = rank.answer(data.cases.indexOf(each), asked);
    last = found;
    show(asked);
    at("worth").textContent = `${asked.worth ? say("waiting_counts", { usd: usd(asked.worth) }) : ""} ${say("chance_means")}`.trim();
    const job = asked.samples === usual(asked.model) && each.words ? each.words : `${many(asked.samples)} ${asked.samples === 1 ? each.unit.replace(/s$/, "") : each.unit}`;
    const precisions = Object.values(found.answers).map(({ row }) => row.gpu.precision ?? each.usual_precision);
    at("question").textContent = say("title", { model: asked.model, job, precision: [...new Set(precisions)].join(" or ") || each.usual_precision });
    at("command").textContent = command(asked);
    const isEmpty = !found.rows.length;
    ["three", "chart", "twin"].forEach((id) => { at(id).hidden = isEmpty; });
    at("said").replaceChildren(...(isEmpty ? relaxed(found.enough, asked) : sentences(found)).map((text) => make("span", {}, `${text} `)));
    if (isEmpty) return;
    drawThree(found);
    drawChart(found);
    drawPair(found.rows);
    const heads = found.best.filter((row, i) => i < MOST_ROWS || ["measured", "added"].includes(row.gpu.basis));
    at("twin").querySelector("tbody").replaceChildren(...heads.map((row) => {
      const { gpus, ...rest } = cells(row);
      return tableRow(gpus, { ...rest, p: chance(row.chances.sensible) });
    }));
  };
  const changed = ({ target: { name, type, value, checked } }) => {
    const asked = read();
    if (name in asked) {
      asked[name] = parsed(name, type === "checkbox" ? `${Number(checked)}` : value);
      if (name === "model") asked.samples = null;
      picked = [];
      write(completed(asked));
    }
    answer();
  };
  [...form.elements].forEach((control) => control.addEventListener("input", changed));
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => { if (/=/.test(location.hash) || location.hash === "") answer(); });
  at("copy").addEventListener("click", () => {
    getSelection().selectAllChildren(at("command"));
    document.execCommand("copy"); // also works on a page opened from disk
    at("copied").textContent = data.labels.copied;
  });
  form.hidden = false;
  answer();
  document.documentElement.dataset.answered = "yes";
  return () => { if (last.rows.length) drawChart(last); };
})();
