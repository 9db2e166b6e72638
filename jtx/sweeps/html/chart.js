// Scales, ticks and shapes of a chart: functions of numbers, which know no page.
const chart = {
  // A function from a value to its place between two ends.
  scale({low, high, log}, from, to) {
    const f = log ? Math.log10 : (x) => x;
    const size = f(high) - f(low) || 1;
    return (x) => from + (f(x) - f(low)) / size * (to - from);
  },

  // Round values between the ends of a range, about `number` of them.
  ticks({low, high, log}, number) {
    const found = [];
    if (log && high / low >= 10) {
      const decades = Math.log10(high / low);
      const every = Math.max(1, Math.ceil(decades / number));
      const within = decades < number / 2 ? [1, 2, 5] : [1];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += every) {
        for (const digit of within) found.push(digit * 10 ** power);
      }
    } else {
      const rough = (high - low) / number || 1;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = power * [1, 2, 5, 10].find((digit) => digit * power >= rough);
      for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-12); i++) found.push(i * step);
    }
    return found.filter((x) => x >= low * (1 - 1e-12) - 1e-300 && x <= high * (1 + 1e-12));
  },

  // A number as a reader wants it: 0.00025, 12000, 3e-7.
  text(x, digits = 4) {
    const size = Math.abs(x);
    const short = Number(x.toPrecision(digits));
    return size && (size < 1e-4 || size >= 1e6) ? short.toExponential() : String(short);
  },

  // The range of values, with a margin; null where there is none.
  range(values, log, margin = 0.04) {
    const there = values.filter((x) => x !== null && Number.isFinite(x) && (!log || x > 0));
    if (!there.length) return null;
    const low = there.reduce((a, b) => Math.min(a, b));
    const high = there.reduce((a, b) => Math.max(a, b));
    if (low === high) {
      const pad = Math.abs(low) / 10 || 1;
      return {low: log ? low / 1.1 : low - pad, high: log ? high * 1.1 : high + pad, log};
    }
    if (log) {
      const factor = (high / low) ** margin;
      return {low: low / factor, high: high * factor, log};
    }
    const pad = margin * (high - low);
    return {low: low - pad, high: high + pad, log};
  },

  // Lists of the places of a line's points that are there, without those that are missing between.
  pieces(line, logX, logY) {
    const found = [[]];
    line.x.forEach((x, i) => {
      const there = line.y[i] !== null && (!logY || line.y[i] > 0) && (!logX || x > 0);
      if (there) found.at(-1).push(i);
      else if (found.at(-1).length) found.push([]);
    });
    return found.filter((piece) => piece.length);
  },
};
