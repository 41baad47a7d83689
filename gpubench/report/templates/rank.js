// Computes the answers of `gpubench rank`, with the same random numbers and factors, without touching the page.
"use strict";
const ranker = (data) => {
  const D = data.draws, costs = data.costs, Z90 = 1.6448536269514722, SECONDS_PER_HOUR = 3600, SECOND = 1 / 3600;
  const ROUNDING = 1e-9, TOSS_UP_ODDS = 2, ENDS = [0.05, 0.95], SQUARED_90 = 4.605, OUTLINE_POINTS = 48; // 4.605 is the 90 % quantile of chi-squared with 2 degrees of freedom
  const zeros = () => new Float64Array(D);

  // --- random numbers by name, as in gpubench.draws ---------------------------------------------------------
  const mixed = (x) => {
    x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
    x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
    return (x ^ (x >>> 16)) >>> 0;
  };
  const { near, far, farthest } = data.inverse_normal;
  const ratio = ([above, below], x) => above.reduce((sum, c) => sum * x + c, 0) / below.reduce((sum, c) => sum * x + c, 0);
  const inverseNormal = (p) => {
    const q = p - 0.5;
    if (Math.abs(q) <= 0.425) return q * ratio(near, 0.180625 - q * q);
    const r = Math.sqrt(-Math.log(Math.min(p, 1 - p)));
    return Math.sign(q) * (r <= 5 ? ratio(far, r - 1.6) : ratio(farthest, r - 5));
  };
  const uniforms = (n, seed, ...names) => {
    let key = 0x811c9dc5;
    for (const byte of new TextEncoder().encode([seed, ...names].join("\0"))) key = Math.imul(key ^ byte, 0x01000193);
    key = mixed(key);
    return Float64Array.from({ length: n }, (_, i) => (mixed(mixed(Math.imul(i + 1, 0x9e3779b9)) ^ key) + 0.5) / 2 ** 32);
  };
  const normals = (n, seed, ...names) => uniforms(n, seed, ...names).map(inverseNormal);
  const kept = new Map();
  const once = (name, make) => {
    if (!kept.has(name)) kept.set(name, make());
    return kept.get(name);
  };
  const normal = (...names) => once(`normal ${names.join("\0")}`, () => normals(D, data.seed, ...names));

  // --- the speed of a case -------------------------------------------------------------------------------------
  const partDraws = (gpu, [rate, sigma, most, start]) => {
    const own = normal("gpu", gpu), share = start === null ? 0 : data.common_share;
    const common = share ? normal(...data.starts[start].split("\0")) : null;
    const near = Math.sqrt(share), rest = Math.sqrt(1 - share);
    return own.map((error, d) =>
      Math.min(rate * Math.exp(sigma * (common ? near * common[d] + rest * error : error)), most ?? Infinity));
  };
  const speedDraws = (at, gpu) => once(`speed ${at} ${gpu}`, () => {
    const { gpus, shares } = data.cases[at];
    const parts = gpus[gpu].parts.map((part) => partDraws(gpu, part));
    if (parts.length === 1) return parts[0];
    const total = shares?.reduce((sum, share) => sum + share, 0);
    return zeros().map((_, d) => shares
      ? 1 / parts.reduce((sum, part, i) => sum + shares[i] / total / part[d], 0)
      : Math.exp(parts.reduce((sum, part) => sum + Math.log(part[d]), 0) / parts.length));
  });

  // One row per offer that runs the case, with the inputs of its figures, which do not depend on the question.
  const rowsOf = (at) => once(`rows ${at}`, () => {
    const { gpus, machines, photographs, task } = data.cases[at];
    const machine = new Map(machines.map((each) => [`${each[1]}x ${each[0]}`, each]));
    return data.offers.flatMap((offer, place) => {
      const key = `${offer.count}x ${offer.gpu}`, found = machine.get(key);
      if (!found || offer.barred.includes(at)) return [];
      const gpu = gpus[offer.gpu], spread = found[offer.is_host ? 4 : 3];
      const certain = (offer.is_own ? gpu.certain : null) ?? 1, delivered = offer.delivered[task === "infer" ? 1 : 0];
      const limit = !photographs ? Infinity
        : delivered * (offer.vcpus === null ? Infinity : (offer.vcpus * costs.images_per_vcpu_s) / photographs);
      const factor = offer.count * found[2] * delivered, rate = gpu.samples_per_s * factor;
      const below = Math.hypot(Math.log(gpu.samples_per_s / gpu.low) * certain, Z90 * spread);
      const above = Math.hypot(Math.log(gpu.high / gpu.samples_per_s) * certain, Z90 * spread);
      const hasEnds = gpu.low !== null && gpu.high !== null;
      return [{
        place, offer, key, gpu, spread, certain, limit, factor, delivered, isModeled: found[5], isOwned: offer.pricing === "owned",
        rate: Math.min(rate, limit),
        rateLow: hasEnds ? Math.min(rate * Math.exp(-below), limit / costs.feed_factor) : NaN,
        rateHigh: hasEnds ? Math.min(rate * Math.exp(above), limit * costs.feed_factor) : NaN,
      }];
    });
  });

  // --- hours and dollars ---------------------------------------------------------------------------------------
  const hours = (row, samples, rate, startup = 1) => {
    const shared = costs.shares_work ? rate : rate / row.offer.count;
    return samples / (shared * SECONDS_PER_HOUR) + (row.isOwned ? 0 : costs.startup_hours * startup);
  };
  const billed = (row, jobHours) => {
    const unit = row.isOwned ? SECOND : costs.billing_hours;
    return Math.max(Math.ceil((jobHours - ROUNDING) / unit), jobHours > 0 ? 1 : 0) * unit;
  };
  const costOfBilled = (row, hoursBilled, price) => {
    const each = costs.shares_work ? price : price / row.offer.count, rented = row.isOwned ? 0 : 1;
    return (hoursBilled * each + (costs.storage_usd_per_hour * hoursBilled + costs.egress_usd) * rented) * (1 + costs.tax);
  };
  const cost = (row, jobHours, price = row.offer.usd) => costOfBilled(row, billed(row, jobHours), price);

  // The ends of a figure, combined from the ends due to each source of error.
  const endsOf = (likely, ...ends) => {
    if (!likely) return [likely, likely, likely];
    const reach = (side) => Math.hypot(...ends.map((each) => Math.log(each[side] / likely)));
    return [likely * Math.exp(-reach(0)), likely, likely * Math.exp(reach(1))];
  };
  const interval = (row, samples, figure, certain) => {
    const at = (rate, startup) => figure(hours(row, samples, rate, startup)) - certain;
    const likely = at(row.rate), move = Math.exp(Z90 * row.offer.sigma), jobHours = hours(row, samples, row.rate);
    const [cheap, dear] = [1 / move, move].map((by) => figure(jobHours, row.offer.usd * by) - certain);
    const ends = endsOf(likely, [at(row.rateHigh), at(row.rateLow)],
      [at(row.rate, 1 / costs.startup_factor), at(row.rate, costs.startup_factor)], [cheap, dear]);
    return ends.map((each) => each + certain);
  };
  const figuresOf = (row, samples, worth) => {
    const once = cost(row, 0, 0), usd = (jobHours, price) => cost(row, jobHours, price);
    return {
      ...row,
      hours: interval(row, samples, (jobHours) => jobHours, 0),
      usd: interval(row, samples, usd, once),
      total: interval(row, samples, (jobHours, price) => usd(jobHours, price) + worth * jobHours, once),
    };
  };
  const worst = ([, likely, high]) => (Number.isNaN(high) ? likely : high);

  // --- joint draws -------------------------------------------------------------------------------------------
  const startups = (row) => once(`start ${row.key}`, () => {
    if (costs.startup_factor === 1) return zeros().fill(1);
    const moves = uniforms(D, data.seed, "start", row.offer.gpu, `${row.offer.count}`);
    return moves.map((move) => costs.farthest_startup ** (2 * move - 1));
  });
  const hourDraws = (at, row, samples) => {
    const speed = speedDraws(at, row.offer.gpu), start = startups(row), gpu = row.gpu;
    const scaled = row.spread > 0 ? normal("scaling", row.offer.gpu) : null;
    const fed = Number.isFinite(row.limit) ? normal("feeding") : null;
    return speed.map((each, d) => {
      let rate = each * row.factor;
      if (row.certain < 1) rate *= (each / gpu.samples_per_s) ** (row.certain - 1);
      if (scaled) rate *= Math.exp(scaled[d] * row.spread);
      if (fed) rate = Math.min(rate, row.limit * Math.exp(costs.feed_sigma * fed[d]));
      return hours(row, samples, rate, start[d]);
    });
  };
  const priceMoves = ({ sigma, group }) => !sigma ? null : once(`price ${group} ${sigma}`, () =>
    normal("price", ...group.split("\0")).map((walk) => Math.exp(walk * sigma)));

  // The draws of rows: hours and dollars of each. Equal machines share their hours.
  const drawn = (at, rows, samples) => {
    const shared = new Map();
    return rows.map((row) => {
      const kind = [row.key, row.spread, row.certain, row.limit, row.isOwned, row.delivered].join(" ");
      if (!shared.has(kind)) {
        const jobHours = hourDraws(at, row, samples);
        shared.set(kind, { hours: jobHours, billed: jobHours.map((each) => billed(row, each)) });
      }
      const of = shared.get(kind), moves = priceMoves(row.offer), price = row.offer.usd;
      return { hours: of.hours, usd: of.billed.map((each, d) => costOfBilled(row, each, moves ? price * moves[d] : price)) };
    });
  };
  // The share of draws in which each row is the lowest; equal rows share a win.
  const wins = (figures) => {
    const least = zeros().fill(Infinity), winners = zeros();
    for (const of of figures) {
      for (let d = 0; d < D; d++) {
        if (of[d] < least[d]) { least[d] = of[d]; winners[d] = 1; } else if (of[d] === least[d]) winners[d] += 1;
      }
    }
    return figures.map((of) => of.reduce((sum, each, d) => sum + (each === least[d] ? 1 / winners[d] : 0), 0) / D);
  };

  // --- the answer --------------------------------------------------------------------------------------------
  const isAsked = (asked) => ({ offer }) =>
    (asked.spot || offer.pricing !== "spot") && (!asked.region || offer.pricing === "owned" || offer.regions.includes(asked.region)) &&
    (!asked.seller || offer.seller === null || offer.seller === asked.seller) && (!offer.have || offer.have === asked.have);
  const by = (...keys) => (a, b) => {
    const key = keys.find((each) => each(a) !== each(b));
    return !key ? 0 : key(a) < key(b) ? -1 : 1;
  };
  const SORTS = {
    cheapest: [(row) => row.usd[1], (row) => row.hours[1]],
    sensible: [(row) => row.total[1], (row) => row.hours[1]],
    fastest: [(row) => row.hours[1], (row) => row.usd[1]],
  };
  const ordered = (rows, name) =>
    [...rows].sort(by((row) => row.gpu.is_guess, ...SORTS[name], (row) => row.offer.usd, (row) => row.place)); // offers are already sorted by name

  // A row with the (rounded) chance of its GPUs from any seller, and its likeliest rival in a toss-up.
  const sureness = (rows, row, chance) => {
    const chances = new Map(), guesses = new Set(rows.filter((each) => each.gpu.is_guess).map((each) => each.key));
    rows.forEach((each) => chances.set(each.key, (chances.get(each.key) ?? 0) + chance(each)));
    const rivals = rows.filter((each) => each.key !== row.key && !guesses.has(each.key));
    const rival = rivals.sort((a, b) => chances.get(b.key) - chances.get(a.key))[0];
    const p = Math.round(chances.get(row.key) * 1e9) / 1e9, against = rival ? chances.get(rival.key) : 0;
    return { row, p: new Set(rows.map(({ gpu }) => gpu)).size === 1 ? null : p, rival: against > 0 && p < TOSS_UP_ODDS * against ? { row: rival, p: against } : null };
  };

  // The lowest budget that meets the deadline, and the lowest deadline that meets the budget; Infinity if none does.
  const enough = (rows, asked) => {
    const least = (name, other, most) => Math.min(...rows.filter((row) => worst(row[other]) <= (most ?? Infinity)).map((row) => worst(row[name])));
    return { usd: least("usd", "hours", asked.deadline), hours: least("hours", "usd", asked.budget) };
  };
  const answer = (at, asked) => {
    const possible = rowsOf(at).filter(isAsked(asked)).map((row) => figuresOf(row, asked.samples, asked.worth));
    const within = possible.filter((row) =>
      worst(row.hours) <= (asked.deadline ?? Infinity) && worst(row.usd) <= (asked.budget ?? Infinity));
    const rows = ordered(within, "sensible");
    if (!rows.length) return { rows, answers: {}, enough: enough(possible, asked) };
    const draws = drawn(at, rows, asked.samples);
    const totals = draws.map(({ hours: jobHours, usd }) => usd.map((each, d) => each + asked.worth * jobHours[d]));
    const chances = {
      cheapest: wins(draws.map(({ usd }) => usd)),
      sensible: wins(totals),
      fastest: wins(draws.map(({ hours: jobHours }) => jobHours)),
    };
    const best = new Map(); // the best offer of each machine, from any seller
    rows.forEach((row, i) => {
      Object.assign(row, { draws: draws[i], answersTo: [] });
      row.chances = Object.fromEntries(Object.entries(chances).map(([name, each]) => [name, each[i]]));
      if (!best.has(row.key)) best.set(row.key, row);
    });
    const answers = Object.fromEntries(Object.keys(SORTS).map((name) => {
      const [first] = ordered(rows, name), isAsFast = ({ key, hours }) => key === first.key && hours[1] <= first.hours[1] * (1 + data.alike);
      const row = name === "fastest" ? ordered(rows.filter(isAsFast), "cheapest")[0] : first;
      row.answersTo.push(name);
      return [name, sureness(rows, row, (each) => each.chances[name])];
    }));
    return { rows, answers, best: [...best.values()], named: [...new Set(Object.values(answers).map(({ row }) => row))] };
  };

  // The rows that no other row beats in both hours and dollars, fastest first, without guesses.
  const frontier = (rows) => rows.filter((row) => !row.gpu.is_guess).sort(by(...SORTS.fastest))
    .reduce((kept, row) => (kept.length && row.usd[1] >= kept.at(-1).usd[1] ? kept : [...kept, row]), []);
  // The ratios of speed and of dollars between two rows, each with the range of nine in ten draws.
  const against = (one, other) => ["hours", "usd"].map((figure) => {
    const ratios = one.draws[figure].map((each, d) => (figure === "hours" ? other.draws[figure][d] / each : each / other.draws[figure][d])).sort();
    const [low, high] = ENDS.map((end) => ratios[Math.round(end * (D - 1))]);
    const likely = figure === "hours" ? other.hours[1] / one.hours[1] : one.usd[1] / other.usd[1];
    return [low, likely, high];
  });
  // The outline around a row: the ellipse in log hours and log dollars that contains nine tenths of its draws.
  const outline = ({ draws, hours: [, likelyHours], usd: [, likelyUsd] }) => {
    const logs = [draws.hours, draws.usd].map((each) => each.map(Math.log));
    const mean = logs.map((each) => each.reduce((sum, x) => sum + x, 0) / D);
    const moment = (a, b) => logs[a].reduce((sum, x, d) => sum + (x - mean[a]) * (logs[b][d] - mean[b]), 0) / D;
    const [xx, xy, yy] = [moment(0, 0), moment(0, 1), moment(1, 1)];
    const angle = Math.atan2(2 * xy, xx - yy) / 2, middle = (xx + yy) / 2, half = Math.hypot((xx - yy) / 2, xy);
    const [long, short] = [middle + half, middle - half].map((each) => Math.sqrt(SQUARED_90 * Math.max(each, 0)));
    return Array.from({ length: OUTLINE_POINTS }, (_, i) => {
      const turn = (i / OUTLINE_POINTS) * 2 * Math.PI, [a, b] = [long * Math.cos(turn), short * Math.sin(turn)];
      return [likelyHours * Math.exp(a * Math.cos(angle) - b * Math.sin(angle)), likelyUsd * Math.exp(a * Math.sin(angle) + b * Math.cos(angle))];
    });
  };
  return { answer, against, outline, frontier, uniforms, normals };
};
