// Answers as `gpubench rank` does: the same numbers are drawn over the same factors. Nothing here touches the page.
"use strict";
const ranker = (data) => {
  const D = data.draws, costs = data.costs, Z90 = 1.6448536269514722, SECONDS_PER_HOUR = 3600, SECOND = 1 / 3600;
  const ROUNDING = 1e-9, TOSS_UP_ODDS = 2, ENDS = [0.05, 0.95], SQUARED_90 = 4.605; // of two normal deviates together
  const zeros = () => new Float64Array(D);

  // --- random numbers by name, as gpubench.draws has them ---------------------------------------------------
  const mixed = (x) => {
    x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
    x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
    return (x ^ (x >>> 16)) >>> 0;
  };
  const ratio = ([above, below], x) => above.reduce((sum, c) => sum * x + c, 0) / below.reduce((sum, c) => sum * x + c, 0);
  const NEAR = [[59.10937472, 159.29113202, 50.434271938, 3.3871327179], [67.1875636, 78.757757664, 17.895169469, 1]];
  const FAR = [[0.17023821103, 1.3067284816, 2.75681539, 1.4234372777], [0.12021132975, 0.7370016425, 1]];
  const FARTHEST = [[0.017337203997, 0.42868294337, 3.081226386, 6.657905115], [0.012258202635, 0.24197894225, 1]];
  const inverseNormal = (p) => {
    const q = p - 0.5;
    if (Math.abs(q) <= 0.425) return q * ratio(NEAR, 0.180625 - q * q);
    const r = Math.sqrt(-Math.log(Math.min(p, 1 - p)));
    return Math.sign(q) * (r <= 5 ? ratio(FAR, r - 1.6) : ratio(FARTHEST, r - 5));
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

  // --- what a case runs at -------------------------------------------------------------------------------------
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

  // One row for each offer that runs the case, with what its figures rest on; whatever is asked of it.
  const rowsOf = (at) => once(`rows ${at}`, () => {
    const { gpus, machines, photographs, task } = data.cases[at];
    const machine = new Map(machines.map((each) => [`${each[1]}x ${each[0]}`, each]));
    return data.offers.flatMap((offer, place) => {
      const key = `${offer.count}x ${offer.gpu}`, found = machine.get(key);
      if (!found || offer.barred.includes(at)) return [];
      const gpu = gpus[offer.gpu], spread = found[offer.is_host ? 4 : 3];
      const isHere = offer.pricing === "owned" && offer.provider === "own" && gpu.certain !== null;
      const delivered = offer.delivered[task === "infer" ? 1 : 0];
      const limit = !photographs ? Infinity
        : delivered * (offer.vcpus === null ? Infinity : (offer.vcpus * costs.images_per_vcpu_s) / photographs);
      const rate = gpu.samples_per_s * offer.count * found[2] * delivered, certain = isHere ? gpu.certain : 1;
      const below = Math.hypot(Math.log(gpu.samples_per_s / gpu.low) * certain, Z90 * spread);
      const above = Math.hypot(Math.log(gpu.high / gpu.samples_per_s) * certain, Z90 * spread);
      const hasEnds = gpu.low !== null && gpu.high !== null;
      return [{
        place, offer, key, gpu, spread, certain, limit, delivered, isOwned: offer.pricing === "owned",
        factor: offer.count * found[2] * delivered,
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

  // The ends of a figure of which each source of error alone gives these.
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

  // Everything that is drawn of rows: hours and dollars of each, alike machines sharing their hours.
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
  // How often each row is the least of a draw; rows that are alike share the win.
  const wins = (count, figure) => {
    const least = zeros().fill(Infinity), winners = zeros(), won = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      const of = figure(i);
      for (let d = 0; d < D; d++) {
        if (of[d] < least[d]) { least[d] = of[d]; winners[d] = 1; } else if (of[d] === least[d]) winners[d] += 1;
      }
    }
    for (let i = 0; i < count; i++) {
      const of = figure(i);
      for (let d = 0; d < D; d++) if (of[d] === least[d]) won[i] += 1 / winners[d];
    }
    return won.map((each) => each / D);
  };

  // --- the answer --------------------------------------------------------------------------------------------
  const isAsked = (asked) => ({ offer }) =>
    (asked.spot || offer.pricing !== "spot") && (!asked.region || offer.pricing === "owned" || offer.regions.includes(asked.region)) &&
    (!asked.seller || offer.seller === null || offer.seller === asked.seller) && (!offer.have || offer.have === asked.have);
  const by = (...keys) => (a, b) => {
    for (const key of keys) {
      const [one, other] = [key(a), key(b)];
      if (one !== other) return one < other ? -1 : 1;
    }
    return 0;
  };
  const SORTS = {
    cheapest: [(row) => row.usd[1], (row) => row.hours[1]],
    sensible: [(row) => row.total[1], (row) => row.hours[1]],
    fastest: [(row) => row.hours[1], (row) => row.usd[1]],
  };
  const ordered = (rows, name) =>
    [...rows].sort(by((row) => row.gpu.is_guess, ...SORTS[name], (row) => row.offer.usd, (row) => row.place)); // offers come by name

  const tossUp = (rows, row, chance) => {
    const chances = new Map(), guesses = new Set(rows.filter((each) => each.gpu.is_guess).map((each) => each.key));
    rows.forEach((each) => chances.set(each.key, (chances.get(each.key) ?? 0) + chance(each)));
    const rivals = [...chances].filter(([key]) => key !== row.key && !guesses.has(key)).sort((a, b) => b[1] - a[1]);
    const [rival] = rivals, mine = chances.get(row.key);
    return !rival || rival[1] <= 0 || mine >= TOSS_UP_ODDS * rival[1] ? null : [[row.key, mine], rival];
  };

  const figured = (at, asked) => rowsOf(at).filter(isAsked(asked)).map((row) => figuresOf(row, asked.samples, asked.worth));
  const answer = (at, asked) => {
    const possible = figured(at, asked);
    const within = possible.filter((row) =>
      worst(row.hours) <= (asked.deadline ?? Infinity) && worst(row.usd) <= (asked.budget ?? Infinity));
    const rows = ordered(within, "sensible");
    if (!rows.length) return { rows, possible, answers: {} };
    const draws = drawn(at, rows, asked.samples);
    const totals = draws.map(({ hours: jobHours, usd }) => usd.map((each, d) => each + asked.worth * jobHours[d]));
    const chances = {
      cheapest: wins(rows.length, (i) => draws[i].usd),
      sensible: wins(rows.length, (i) => totals[i]),
      fastest: wins(rows.length, (i) => draws[i].hours),
    };
    rows.forEach((row, i) => Object.assign(row, { draws: draws[i] },
      { chances: Object.fromEntries(Object.entries(chances).map(([name, each]) => [name, each[i]])) }));
    const answers = Object.fromEntries(Object.keys(SORTS).map((name) => {
      const [row] = ordered(rows, name), chance = (each) => each.chances[name];
      return [name, { row, p: chance(row), tossUp: tossUp(rows, row, chance) }];
    }));
    return { rows, possible, answers };
  };

  // How many times one row is as fast as another, and how many times its dollars, each with nine in ten draws.
  const against = (one, other) => ["hours", "usd"].map((figure) => {
    const ratios = one.draws[figure].map((each, d) => (figure === "hours" ? other.draws[figure][d] / each : each / other.draws[figure][d])).sort();
    const [low, high] = ENDS.map((end) => ratios[Math.round(end * (D - 1))]);
    const likely = figure === "hours" ? other.hours[1] / one.hours[1] : one.usd[1] / other.usd[1];
    return [low, likely, high];
  });
  // The ellipse in log hours and log dollars that holds nine tenths of a row's draws: center and two axes.
  const ellipse = ({ draws }) => {
    const logs = [draws.hours, draws.usd].map((each) => each.map(Math.log));
    const mean = logs.map((each) => each.reduce((sum, x) => sum + x, 0) / D);
    const moment = (a, b) => logs[a].reduce((sum, x, d) => sum + (x - mean[a]) * (logs[b][d] - mean[b]), 0) / D;
    const [xx, xy, yy] = [moment(0, 0), moment(0, 1), moment(1, 1)];
    const angle = Math.atan2(2 * xy, xx - yy) / 2, middle = (xx + yy) / 2, half = Math.hypot((xx - yy) / 2, xy);
    return { angle, reach: [middle + half, middle - half].map((each) => Math.sqrt(SQUARED_90 * Math.max(each, 0))) };
  };
  return { answer, against, ellipse, uniforms, normals };
};
