/**
 * The forward pass of the lab's small T5, for questions of a few tokens.
 *
 * Weights come as int8 with one scale per row (make_data.py writes them). Everything is computed in float64, so that
 * the tests can compare it with PyTorch on the same rounded weights. The function that makes it uses nothing outside
 * of itself, so that its text is also the program of a worker (answering.js).
 */
"use strict";

function makeT5() {
  const EPSILON = 1e-6;
  const DIGITS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

  /** Probabilities of a row of logits. */
  function softmax(row) {
    const largest = Math.max(...row);
    const weights = row.map((z) => Math.exp(z - largest));
    const total = weights.reduce((a, b) => a + b, 0);
    return weights.map((w) => w / total);
  }

  const bytesOf = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));

  /**
   * A model with its weights as rows of numbers.
   *
   * @param {Object} file - what make_data.py wrote: `config`, `tokens`, `tensors`, `int8`, `float32`.
   * @returns {{config: Object, tokens: Object<string, number>, weights: Object<string, Float64Array[]>}} each weight
   *   is a list of rows.
   */
  function load(file) {
    const integers = new Int8Array(bytesOf(file.int8).buffer);
    const floats = new Float32Array(bytesOf(file.float32).buffer);
    const weights = {};
    let integer = 0;
    let float = 0;
    for (const { name, rows, columns, rounded } of file.tensors) {
      weights[name] = Array.from({ length: rows }, () => {
        const scale = rounded ? floats[float++] : 1;
        const row = rounded ? integers.subarray(integer, integer + columns) : floats.subarray(float, float + columns);
        if (rounded) integer += columns;
        else float += columns;
        return Float64Array.from(row, (x) => x * scale);
      });
    }
    return { config: file.config, tokens: file.tokens, weights };
  }

  /** Matrix times vector. */
  function multiply(rows, x) {
    const y = new Float64Array(rows.length);
    for (let i = 0; i < rows.length; i++) {
      const row = rows[i];
      let total = 0;
      for (let j = 0; j < x.length; j++) total += row[j] * x[j];
      y[i] = total;
    }
    return y;
  }

  const add = (x, y) => x.map((value, i) => value + y[i]);

  /** Scale to a root mean square of 1, then by the layer's weights. */
  function normalize(x, [scale]) {
    let squares = 0;
    for (const value of x) squares += value * value;
    const factor = 1 / Math.sqrt(squares / x.length + EPSILON);
    return x.map((value, i) => value * factor * scale[i]);
  }

  /** T5's bucket of a distance in tokens, `key - query`: exact when small, logarithmic when large. */
  function bucketOf(distance, config, bidirectional) {
    const buckets = bidirectional ? config.buckets / 2 : config.buckets;
    const offset = bidirectional && distance > 0 ? buckets : 0;
    const apart = bidirectional ? Math.abs(distance) : Math.max(-distance, 0);
    const exact = buckets / 2;
    if (apart < exact) return offset + apart;
    const log = Math.log(apart / exact) / Math.log(config.maxDistance / exact);
    return offset + Math.min(exact + Math.floor(log * (buckets - exact)), buckets - 1);
  }

  /**
   * Attention of one position over keys and values, all heads.
   *
   * @param {Float64Array} query
   * @param {Float64Array[]} keys
   * @param {Float64Array[]} values
   * @param {number} heads
   * @param {function(number, number): number} bias - of a head and the index of a key.
   */
  function attend(query, keys, values, heads, bias) {
    const width = query.length / heads;
    const mixed = new Float64Array(query.length);
    for (let head = 0; head < heads; head++) {
      const start = head * width;
      const scores = keys.map((key, i) => {
        let score = bias(head, i);
        for (let d = start; d < start + width; d++) score += query[d] * key[d];
        return score;
      });
      softmax(scores).forEach((share, i) => {
        for (let d = start; d < start + width; d++) mixed[d] += share * values[i][d];
      });
    }
    return mixed;
  }

  /** The feed-forward part of a layer, with its residual connection. */
  function feedForward(weights, layer, x) {
    const hidden = multiply(weights[`${layer}.wi`], normalize(x, weights[`${layer}.ff_norm`]));
    return add(x, multiply(weights[`${layer}.wo`], hidden.map((h) => Math.max(h, 0))));
  }

  /** Encode token ids: one vector per token. */
  function encode({ config, weights }, ids) {
    const bias = (head, distance) => weights["encoder.bias"][bucketOf(distance, config, true)][head];
    let states = ids.map((id) => weights.embedding[id]);
    for (let i = 0; i < config.layers; i++) {
      const layer = `encoder.${i}`;
      const normed = states.map((x) => normalize(x, weights[`${layer}.self_norm`]));
      const [queries, keys, values] = ["q", "k", "v"].map((part) =>
        normed.map((x) => multiply(weights[`${layer}.self.${part}`], x)),
      );
      states = states.map((x, position) => {
        const toKey = (head, key) => bias(head, key - position);
        const mixed = attend(queries[position], keys, values, config.heads, toKey);
        return feedForward(weights, layer, add(x, multiply(weights[`${layer}.self.o`], mixed)));
      });
    }
    return states.map((x) => normalize(x, weights["encoder.norm"]));
  }

  /** What the decoder's cross-attention looks up: keys and values of each layer. */
  function crossAttention({ config, weights }, encoded) {
    return Array.from({ length: config.layers }, (_, i) => ({
      keys: encoded.map((x) => multiply(weights[`decoder.${i}.cross.k`], x)),
      values: encoded.map((x) => multiply(weights[`decoder.${i}.cross.v`], x)),
    }));
  }

  /**
   * One step of the decoder.
   *
   * @param {Object} model
   * @param {Object[]} cross - from `crossAttention`.
   * @param {Object[]} past - keys and values of the tokens before, one entry per layer.
   * @param {number} id - the token to read.
   * @returns {{logits: Float64Array, past: Object[]}} logits of the next token, and the past with this token.
   */
  function decode({ config, weights }, cross, past, id) {
    const { heads } = config;
    const position = past[0].keys.length;
    const toKey = (head, key) => weights["decoder.bias"][bucketOf(key - position, config, false)][head];
    let x = weights.embedding[id];
    const next = past.map((before, i) => {
      const layer = `decoder.${i}`;
      const normed = normalize(x, weights[`${layer}.self_norm`]);
      const keys = [...before.keys, multiply(weights[`${layer}.self.k`], normed)];
      const values = [...before.values, multiply(weights[`${layer}.self.v`], normed)];
      const self = attend(multiply(weights[`${layer}.self.q`], normed), keys, values, heads, toKey);
      x = add(x, multiply(weights[`${layer}.self.o`], self));
      const query = multiply(weights[`${layer}.cross.q`], normalize(x, weights[`${layer}.cross_norm`]));
      const looked = attend(query, cross[i].keys, cross[i].values, heads, () => 0);
      x = feedForward(weights, layer, add(x, multiply(weights[`${layer}.cross.o`], looked)));
      return { keys, values };
    });
    const out = normalize(x, weights["decoder.norm"]).map((value) => value * config.logitScale);
    return { logits: multiply(weights.embedding, out), past: next };
  }

  /**
   * The model's distribution over the numbers 000 to 999, masked to three digits.
   *
   * @param {Object} model - from `load`.
   * @param {string} question - such as "12 70 45".
   * @returns {Float64Array} `[1000]`.
   */
  function distribution(model, question) {
    const { tokens, config } = model;
    const ids = [...question].map((c) => tokens[c === " " ? "▁" : c]).concat(tokens["</s>"]);
    const cross = crossAttention(model, encode(model, ids));
    const probs = new Float64Array(1000);
    const empty = Array.from({ length: config.layers }, () => ({ keys: [], values: [] }));
    const descend = (past, id, prefix, level, mass) => {
      const read = decode(model, cross, past, id);
      const digits = softmax(DIGITS.map((d) => read.logits[tokens[d]]));
      digits.forEach((share, d) => {
        if (level === 2) probs[10 * prefix + d] = mass * share;
        else descend(read.past, tokens[d], 10 * prefix + d, level + 1, mass * share);
      });
    };
    descend(empty, tokens["<pad>"], 0, 0, 1);
    return probs;
  }

  return { load, distribution };
}

const t5 = makeT5();
