// The charts, fed once a second while somebody looks.

import { ask } from "./api.js";
import { BarChart, LineChart } from "./charts.js";
import { byId } from "./dom.js";

const EVERY_MS = 1000;

const ms = (seconds) => (seconds === null ? "–" : `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`);
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(2)} GiB`;
const count = (value) => value.toFixed(0);
const pair = (both) => [both?.p50 ?? null, both?.p99 ?? null];
const toldPair = (both) => (both ? `${ms(both.p50)} / ${ms(both.p99)}` : "–");

export class Live {
  // `onAnswer` is told after every try: null, or what went wrong.
  constructor(onAnswer) {
    this.onAnswer = onAnswer;
    this.rate = new LineChart("tokens/s", count);
    this.first = new LineChart("first token p50 / p99", ms);
    this.between = new LineChart("between tokens p50 / p99", ms);
    this.depths = new BarChart("accepted by depth");
    this.queue = new LineChart("running / waiting", count);
    this.memory = new LineChart("memory: process / KV in use", gib);
    byId("charts").append(
      ...[this.rate, this.depths, this.first, this.between, this.queue, this.memory].map((one) => one.element),
    );
  }

  start() {
    if (this.timer) return;
    const turn = async () => {
      this.timer = setTimeout(turn, EVERY_MS);
      if (document.hidden) return;
      try {
        this.draw(await (await ask("/live")).json());
        this.onAnswer(null);
      } catch (problem) {
        this.onAnswer(problem);
      }
    };
    this.timer = setTimeout(turn, 0);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  draw(now) {
    const { running, waiting } = now.requests;
    const { process_bytes: process, kv_used_bytes: kv } = now.memory;
    this.rate.add([now.tokens_per_s], now.tokens_per_s.toFixed(0));
    this.first.add(pair(now.ttft_s), toldPair(now.ttft_s));
    this.between.add(pair(now.inter_token_s), toldPair(now.inter_token_s));
    this.queue.add([running, waiting], `${running} / ${waiting}`);
    this.memory.add([process, kv], `${gib(process)} / ${gib(kv)}`);
    const length = now.acceptance_length;
    this.depths.draw(now.acceptance_by_depth, length === null ? "–" : `${length.toFixed(2)} a pass`);
  }
}
