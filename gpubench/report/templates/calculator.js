// The page's question and its answer: what is asked stands in the address, what is answered is drawn again.
(async () => {
  const at = (id) => document.getElementById(id);
  const packed = at("calculator");
  if (!packed) return;
  const bytes = Uint8Array.from(atob(packed.textContent), (c) => c.charCodeAt(0));
  const data = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  const rank = ranker(data), form = at("ask"), MOST_DOTS = 40, MOST_ROWS = 40;
  const make = (name, attributes = {}, ...inside) => {
    const element = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    element.append(...inside);
    return element;
  };

  // --- figures in words, as gpubench.units and gpubench.interval have them ---------------------------------
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
    const wide = Number.isFinite(low) && high > low;
    if (!wide) return number(value) + unit;
    const exponent = Math.max(digitsOf(Math.max(value, high)) - 5, digitsOf((high - low) / 10));
    const [l, v, h] = [low, value, high].map((each) => toPlace(each, exponent));
    return `${v}${unit} (${l} to ${h})`;
  };
  const UNITS = [[48, 24, " days"], [1, 1, " h"], [1 / 60, 1 / 60, " min"], [0, 1 / 3600, " s"]];
  const duration = (hours) => { const [, of, unit] = UNITS.find(([least]) => hours >= least); return number(hours / of) + unit; };
  const hoursInWords = (ends) => { const [, of, unit] = UNITS.find(([least]) => ends[1] >= least); return interval(ends.map((each) => each / of), unit); };
  const usd = (value) => (Math.abs(value) >= 1 || !value ? `$${fixed(value, 2)}` : `$${number(value)}`);
  const usdInWords = ([low, value, high]) => (Number.isFinite(low) && high > low ? `${usd(value)} (${usd(low)} to ${usd(high)})` : usd(value));
  const ranged = (words) => words.replace(" to ", "–"); // three rows stand for a screen: they are kept short
  const chance = (p) => (p > 0.99 && p < 1 ? "> 99 %" : p > 0 && p < 0.01 ? "< 1 %" : `${fixed(p * 100, 0)} %`);
  const many = (samples) => (samples >= 1e9 ? `${number(samples / 1e9)} billion` : samples >= 1e6 ? `${number(samples / 1e6)} million` : fixed(samples, 0));
  const gpusOf = ({ offer }) => `${offer.count}x ${data.gpus[offer.gpu].name}`;
  const named = (key) => key.replace(/ .*/, "") + " " + data.gpus[key.replace(/^\d+x /, "")].name;
  const say = (id, fields = {}) => data.sentences[id].replace(/\{(\w+)\}/g, (_, name) => fields[name]);

  // --- the question: its controls, and the address ----------------------------------------------------------
  const labels = [...new Set(data.cases.map((each) => each.label))];
  const caseOf = ({ model, precision }) => {
    const of = data.cases.findIndex((each) => each.label === model && each.precision === precision);
    return of < 0 ? data.cases.findIndex((each) => each.label === model) : of;
  };
  const usual = (model) => data.cases.find((each) => each.label === model).samples;
  const fill = (name, options) => form.elements[name].replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  const haves = data.offers.map((offer) => offer.have).filter(Boolean);
  fill("model", labels.map((each) => [each, each]));
  fill("have", [["", data.labels.nothing], ...haves.map((each) => [each, named(each)])]);
  fill("seller", [["", data.labels.anybody], ...Object.entries(data.sellers)]);
  fill("region", [["", data.labels.anywhere], ...Object.entries(data.regions)]);
  const figure = (text) => {
    const [, digits, step] = /^\s*([\d.,]+(?:e\d+)?)\s*([kMGB]?)\s*$/i.exec(text) ?? [];
    const value = Number(digits?.replaceAll(",", "")) * { k: 1e3, m: 1e6, g: 1e9, b: 1e9 }[step?.toLowerCase() || "k"] / (step ? 1 : 1e3);
    return value > 0 ? value : null;
  };
  const FIGURES = ["samples", "worth", "budget", "deadline"];
  const begin = { ...data.begin };
  const read = () => {
    const given = new URLSearchParams(location.hash.slice(1)), asked = { ...begin };
    for (const name of Object.keys(begin)) {
      if (!given.has(name)) continue;
      const text = given.get(name);
      asked[name] = FIGURES.includes(name) ? (name === "worth" && Number(text) === 0 ? 0 : figure(text)) : name === "spot" ? text === "1" : text || null;
    }
    if (!labels.includes(asked.model)) asked.model = begin.model;
    if (!given.has("samples") && asked.model !== begin.model) asked.samples = usual(asked.model);
    const known = { have: haves, seller: Object.keys(data.sellers), region: Object.keys(data.regions) };
    for (const [name, values] of Object.entries(known)) if (!values.includes(asked[name])) asked[name] = null;
    return { ...asked, precision: data.cases[caseOf(asked)].precision, samples: asked.samples ?? usual(asked.model), worth: asked.worth ?? begin.worth };
  };
  const write = (asked) => {
    const changed = Object.entries(asked).filter(([name, value]) => value !== begin[name]);
    const text = new URLSearchParams(changed.map(([name, value]) => [name, value === true ? 1 : value === false ? 0 : value ?? ""]));
    history.replaceState(null, "", changed.length ? `#${text}` : location.pathname + location.search);
  };
  const show = (asked) => {
    const of = data.cases.filter((each) => each.label === asked.model);
    fill("precision", of.map((each) => [each.precision, each.precision]));
    for (const [name, control] of Object.entries(form.elements)) {
      if (!(name in asked)) continue;
      if (control.type === "checkbox") control.checked = asked[name];
      else if (control !== document.activeElement) control.value = asked[name] ?? "";
    }
    at("unit").textContent = of[0].unit[0].toUpperCase() + of[0].unit.slice(1);
  };
  const command = (asked) => {
    const each = data.cases[caseOf(asked)], quoted = (text) => (/^[\w.+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
    const options = [["precision", each.precision], ["samples", asked.samples], ["hour-worth", asked.worth],
      ["budget-usd", asked.budget], ["deadline-hours", asked.deadline], ["have", asked.have], ["seller", asked.seller], ["region", asked.region]];
    const given = options.filter(([, value]) => value !== null).map(([name, value]) => `--${name} ${quoted(`${value}`)}`);
    return ["gpubench rank", ...each.workloads.map(quoted), ...given, ...(asked.spot ? ["--spot"] : []), ...data.filters.map(quoted)].join(" ");
  };

  // --- the answer -----------------------------------------------------------------------------------------------
  const sellerOf = ({ offer }) => (offer.pricing === "owned" ? offer.name : `${offer.provider}${offer.pricing === "spot" ? " spot" : ""}${offer.is_host ? "*" : ""}`);
  const basisOf = ({ gpu }) => data.bases[gpu.is_guess ? "guess" : gpu.basis];
  const sentences = ({ answers, rows }) => {
    const { cheapest, sensible, fastest } = answers, said = [];
    const rate = (one, other) => (other.usd[1] - one.usd[1]) / (one.hours[1] - other.hours[1]);
    const saves = (one, other) => one !== other && one.hours[1] > other.hours[1] && other.usd[1] > one.usd[1];
    if (cheapest.row === sensible.row) said.push(say("one_answer"));
    else if (saves(cheapest.row, sensible.row))
      said.push(say("exchange", { more_usd: usd(sensible.row.usd[1] - cheapest.row.usd[1]), hours: duration(cheapest.row.hours[1] - sensible.row.hours[1]), usd_per_hour: usd(rate(cheapest.row, sensible.row)) }));
    if (fastest.row === sensible.row) { if (cheapest.row !== sensible.row) said.push(say("fastest_is_sensible")); }
    else if (saves(sensible.row, fastest.row))
      said.push(say("exchange_next", { hours: duration(sensible.row.hours[1] - fastest.row.hours[1]), usd_per_hour: usd(rate(sensible.row, fastest.row)) }));
    for (const [name, { tossUp }] of Object.entries(answers))
      if (tossUp) said.push(say("toss_up", { objective: data.objectives[name], gpu: named(tossUp[0][0]), p: chance(tossUp[0][1]), other_gpu: named(tossUp[1][0]), other_p: chance(tossUp[1][1]) }));
    if (new Set(rows.map((row) => row.offer.gpu)).size === 1) said.push(say("one_gpu_left"));
    const named3 = Object.values(answers).map(({ row }) => row);
    if (named3.some(({ offer }) => offer.is_host)) said.push(say("private_host_short"));
    for (const { offer } of new Set(named3)) if (offer.doubt) said.push(`${data.gpus[offer.gpu].name}: ${offer.doubt}.`);
    return said;
  };
  const relaxed = (possible, asked) => {
    const worst = (ends) => (Number.isFinite(ends[2]) ? ends[2] : ends[1]), up = (value) => number(value * 1.005);
    const least = (rows, figureOf) => Math.min(...rows.map((row) => worst(row[figureOf])));
    const cheap = possible.filter((row) => worst(row.usd) <= (asked.budget ?? Infinity)), quick = possible.filter((row) => worst(row.hours) <= (asked.deadline ?? Infinity));
    const ways = [];
    if (asked.budget && quick.length) ways.push(say("relax_budget", { usd: `$${up(least(quick, "usd"))}` }));
    if (asked.deadline && cheap.length) ways.push(say("relax_deadline", { hours: up(least(cheap, "hours")) }));
    return ways;
  };
  const cells = (row) => [gpusOf(row), sellerOf(row), hoursInWords(row.hours), usdInWords(row.usd), `${usd(row.offer.usd)}/h`, data.gpus[row.offer.gpu].memory, basisOf(row)];
  const tableRow = (row, head, extra) => make("tr", {}, make("th", { scope: "row" }, head), ...extra.map((text, i) => make("td", i > 1 && i < 6 ? { class: "number" } : {}, text)));
  const drawThree = (answers) => {
    const rows = new Map();
    for (const [name, { row, p }] of Object.entries(answers)) {
      if (!rows.has(row)) rows.set(row, []);
      rows.get(row).push([name, p]);
    }
    at("three").tBodies[0].replaceChildren(...[...rows].map(([row, of]) => make("tr", {},
      make("th", { scope: "row" }, of.map(([name]) => data.titles[name]).join(" · ")),
      ...[`${gpusOf(row)}, ${sellerOf(row)}`, ranged(hoursInWords(row.hours)), ranged(usdInWords(row.usd)), basisOf(row), of.map(([, p]) => chance(p)).join(" · ")]
        .map((text, i) => make("td", i === 1 || i === 2 ? { class: "number" } : {}, text)))));
  };

  // --- the chart: hours to the right, dollars upward, both on logarithmic axes ---------------------------------
  const svg = at("hero"), tip = at("tip"), HEIGHT = 420, EDGE = { left: 62, right: 24, top: 18, bottom: 44 };
  let picked = [];
  const steps = (low, high) => {
    const all = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) for (const m of [1, 2, 5]) all.push(m * 10 ** power);
    const inside = all.filter((value) => value >= low && value <= high);
    return inside.length > 8 ? inside.filter((value) => /^1/.test(value.toExponential())) : inside;
  };
  const TIMES = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000, 864000, 2592000, 8640000, 31536000].map((s) => s / 3600);
  const drawChart = (asked, { rows, answers }) => {
    const best = new Map();
    rows.forEach((row) => { if (!best.has(row.key)) best.set(row.key, row); });
    const three = Object.entries(answers), chosen = three.map(([, { row }]) => row);
    const heads = [...new Set([...chosen, ...[...best.values()].slice(0, MOST_DOTS)])];
    const others = form.elements.every.checked ? rows.filter((row) => !heads.includes(row)) : [];
    const dots = [...heads, ...others], width = Math.max(320, svg.clientWidth || 900);
    const wide = new Map(chosen.map((row) => [row, rank.ellipse(row)]));
    const span = (figureOf, axis) => {
      const ends = dots.flatMap((row) => [row[figureOf][1] / 1.12, row[figureOf][1] * 1.12]);
      wide.forEach(({ angle, reach }, row) => {
        const half = Math.hypot(reach[0] * (axis ? Math.sin(angle) : Math.cos(angle)), reach[1] * (axis ? Math.cos(angle) : Math.sin(angle)));
        ends.push(row[figureOf][1] * Math.exp(-half * 1.05), row[figureOf][1] * Math.exp(half * 1.05));
      });
      return [Math.min(...ends), Math.max(...ends)];
    };
    const [x0, x1] = span("hours", 0), [y0, y1] = span("usd", 1);
    const x = (hours) => EDGE.left + ((width - EDGE.left - EDGE.right) * Math.log(hours / x0)) / Math.log(x1 / x0);
    const y = (dollars) => HEIGHT - EDGE.bottom - ((HEIGHT - EDGE.top - EDGE.bottom) * Math.log(dollars / y0)) / Math.log(y1 / y0);
    const parts = [];
    const text = (where, words) => parts.push(make("svg:text", where, words));
    const times = TIMES.filter((value) => value >= x0 && value <= x1), room = Math.max(1, Math.ceil(times.length / (width / 90)));
    times.forEach((value, i) => {
      parts.push(make("svg:line", { class: "grid", x1: x(value), x2: x(value), y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
      if (i % room === 0) text({ x: x(value), y: HEIGHT - EDGE.bottom + 16, class: "tick middle" }, duration(value).replace(/\.0+ /, " "));
    });
    steps(y0, y1).forEach((value) => {
      parts.push(make("svg:line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }));
      text({ x: EDGE.left - 6, y: y(value) + 4, class: "tick end" }, value >= 1 ? `$${fixed(value, 0)}` : `$${number(value, 1)}`);
    });
    text({ x: (EDGE.left + width) / 2, y: HEIGHT - 8, class: "tick middle" }, data.labels.hours);
    text({ x: 14, y: HEIGHT / 2, class: "tick middle", transform: `rotate(-90 14 ${HEIGHT / 2})` }, data.labels.usd);
    const frontier = [...rows].filter((row) => !row.gpu.is_guess).sort((a, b) => a.hours[1] - b.hours[1] || a.usd[1] - b.usd[1]);
    let least = Infinity, path = "";
    frontier.forEach((row) => {
      if (row.usd[1] >= least) return;
      path += path ? `H${x(row.hours[1])}V${y(row.usd[1])}` : `M${x(row.hours[1])},${y(row.usd[1])}`;
      least = row.usd[1];
    });
    parts.push(make("svg:path", { class: "frontier", d: path }));
    wide.forEach(({ angle, reach }, row) => {
      const points = Array.from({ length: 48 }, (_, i) => {
        const turn = (i / 48) * 2 * Math.PI, [a, b] = [reach[0] * Math.cos(turn), reach[1] * Math.sin(turn)];
        return `${x(row.hours[1] * Math.exp(a * Math.cos(angle) - b * Math.sin(angle)))},${y(row.usd[1] * Math.exp(a * Math.sin(angle) + b * Math.cos(angle)))}`;
      });
      parts.push(make("svg:polygon", { class: "ellipse", points: points.join(" ") }));
    });
    const boxes = [], pen = document.createElement("canvas").getContext("2d"), { fontFamily } = getComputedStyle(svg);
    const place = (row, words, isAnswer) => {
      pen.font = `${isAnswer ? "650 12.5px" : "11px"} ${fontFamily}`;
      const [px, py] = [x(row.hours[1]), y(row.usd[1])], long = pen.measureText(words).width;
      const spots = [[10, 4], [-long - 10, 4], [-long / 2, -11], [-long / 2, 21], [9, -9], [9, 18], [-long - 9, -9], [-long - 9, 18]];
      const free = spots.find(([dx, dy]) => {
        const box = [px + dx - 2, py + dy - 11, px + dx + long, py + dy + 3];
        const inside = box[0] > EDGE.left && box[2] < width - 2 && box[1] > 2 && box[3] < HEIGHT - EDGE.bottom;
        return inside && !boxes.some((o) => box[0] < o[2] && box[2] > o[0] && box[1] < o[3] && box[3] > o[1]);
      }) ?? (isAnswer ? [px > width / 2 ? -long - 9 : 9, 4] : null);
      if (!free) return;
      boxes.push([px + free[0] - 2, py + free[1] - 11, px + free[0] + long, py + free[1] + 3]);
      text({ x: px + free[0], y: py + free[1], class: isAnswer ? "label answer" : "label" }, words);
    };
    dots.forEach((row) => boxes.push([x(row.hours[1]) - 5, y(row.usd[1]) - 5, x(row.hours[1]) + 5, y(row.usd[1]) + 5]));
    const titled = new Map();
    three.forEach(([name, { row }]) => titled.set(row, [...(titled.get(row) ?? []), data.titles[name]]));
    titled.forEach((names, row) => place(row, `${names.join(", ")}: ${gpusOf(row)}`, true));
    heads.filter((row) => !titled.has(row)).forEach((row) => place(row, gpusOf(row), false));
    [...dots].reverse().forEach((row) => {
      const kind = [row.gpu.is_guess ? "guess" : row.gpu.basis, titled.has(row) ? "answer" : "", heads.includes(row) ? "" : "minor", picked.includes(row.place) ? "picked" : ""];
      const about = [`${gpusOf(row)}, ${sellerOf(row)}`, hoursInWords(row.hours), usdInWords(row.usd), `${usd(row.offer.usd)}/h`, data.gpus[row.offer.gpu].memory, say("price_age_short", { days: row.offer.age_days }), basisOf(row)];
      const dot = make("svg:circle", { class: kind.filter(Boolean).join(" "), cx: x(row.hours[1]), cy: y(row.usd[1]), r: titled.has(row) ? 7 : heads.includes(row) ? 5 : 3, role: "button", "aria-label": about.join("; "), "data-place": row.place, tabindex: heads.includes(row) ? 0 : -1 });
      const over = () => { tip.replaceChildren(...about.map((line) => make("div", {}, line))); tip.hidden = false; tip.style.left = `${Math.min(x(row.hours[1]) + 12, width - 190)}px`; tip.style.top = `${y(row.usd[1]) + 12}px`; };
      const out = () => { tip.hidden = true; };
      for (const [event, act] of [["mouseenter", over], ["focus", over], ["mouseleave", out], ["blur", out]]) dot.addEventListener(event, act);
      const pick = () => { picked = picked.includes(row.place) ? picked.filter((each) => each !== row.place) : [...picked.slice(-1), row.place]; drawPair(rows); drawn.forEach((other) => other.classList.toggle("picked", picked.includes(Number(other.dataset.place)))); };
      dot.addEventListener("click", pick);
      dot.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } });
      parts.push(dot);
    });
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.replaceChildren(...parts);
    const drawn = [...svg.querySelectorAll("circle")];
  };
  const drawPair = (rows) => {
    const pair = picked.map((each) => rows.find((row) => row.place === each)).filter(Boolean);
    if (pair.length < 2) {
      const cut = data.offers.length < data.offer_count ? [say("few_offers", { shown: fixed(data.offers.length, 0), count: fixed(data.offer_count, 0) })] : [];
      at("pair").textContent = [say("pair_how"), ...cut].join(" ");
      return;
    }
    const [quick, slow] = pair[0].hours[1] <= pair[1].hours[1] ? pair : [pair[1], pair[0]];
    const [faster, dearer] = rank.against(quick, slow);
    at("pair").textContent = say("pair", { a: `${gpusOf(quick)} (${sellerOf(quick)})`, b: `${gpusOf(slow)} (${sellerOf(slow)})`, times: interval(faster), ratio: interval(dearer) });
  };

  // --- asked and answered -------------------------------------------------------------------------------------
  let last = null;
  const answer = () => {
    const asked = read(), found = rank.answer(caseOf(asked), asked), each = data.cases[caseOf(asked)];
    last = [asked, found];
    show(asked);
    const job = asked.samples === usual(asked.model) && each.words ? each.words : `${many(asked.samples)} ${each.unit}`;
    const precisions = Object.values(found.answers ?? {}).map(({ row }) => row.gpu.precision ?? each.usual_precision);
    at("question").textContent = say("title", { model: asked.model, job, precision: [...new Set(precisions)].join(" or ") || each.usual_precision });
    at("command").textContent = command(asked);
    const isEmpty = !found.rows.length;
    ["three", "chart", "twin"].forEach((id) => { at(id).hidden = isEmpty; });
    at("said").replaceChildren(...(isEmpty ? [say("nothing_meets"), ...relaxed(found.possible, asked)] : sentences(found)).map((text) => make("span", {}, `${text} `)));
    if (isEmpty) return;
    drawThree(found.answers);
    drawChart(asked, found);
    drawPair(found.rows);
    const seen = new Set(), heads = found.rows.filter((row) => !seen.has(row.key) && seen.add(row.key)).filter((row, i) => i < MOST_ROWS || row.gpu.basis === "measured");
    at("twin").querySelector("tbody").replaceChildren(...heads.map((row) => tableRow(row, cells(row)[0], [...cells(row).slice(1), chance(row.chances.sensible)])));
  };
  const changed = (event) => {
    const asked = read(), { name } = event.target;
    if (!(name in asked)) { answer(); return; }
    const { value, checked, type } = event.target;
    asked[name] = type === "checkbox" ? checked : FIGURES.includes(name) ? (name === "worth" && Number(value) === 0 && value ? 0 : figure(value)) : value || null;
    if (name === "model") Object.assign(asked, { samples: usual(value), precision: data.cases.find((each) => each.label === value).precision });
    if (asked.samples === null) asked.samples = usual(asked.model);
    if (asked.worth === null) asked.worth = begin.worth;
    picked = [];
    write(asked);
    answer();
  };
  [...form.elements].forEach((control) => control.addEventListener("input", changed));
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => { if (/=/.test(location.hash) || location.hash === "") answer(); });
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (width !== window.innerWidth) { width = window.innerWidth; if (last?.[1].rows.length) drawChart(...last); } });
  at("copy").addEventListener("click", async () => {
    const range = document.createRange();
    range.selectNodeContents(at("command"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    try { await navigator.clipboard.writeText(at("command").textContent); } catch { document.execCommand("copy"); }
    at("copied").textContent = data.labels.copied;
  });
  form.hidden = false;
  answer();
  document.documentElement.dataset.answered = "yes";
})();
