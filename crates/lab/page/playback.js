// Playback of a run: play, pause, step, and seek in the recorded decisions.

/** A place in a record: an instant, and how many arrivals lie before it. */
export class Playback {
  constructor(record, speed) {
    this.record = record;
    /** Microseconds of the run in one of ours; infinite if it is to keep up with what comes. */
    this.speed = speed;
    this.time = 0;
    this.arrivals = 0;
    this.playing = true;
    this.ended = false;
  }

  /** Goes on by so many milliseconds of ours. Says whether anything has moved. */
  advance(milliseconds) {
    if (!this.playing) return false;
    const { until } = this.record;
    const before = this.time;
    const ahead = until - this.time;
    const keepsUp = this.speed === Infinity;
    const step = keepsUp ? Math.max(ahead * 0.25, 1) : milliseconds * 1_000 * this.speed;
    const isThere = ahead <= step || (keepsUp && ahead < this.record.expected.length / 500);
    this.time = isThere ? until : this.time + step;
    const arrivals = this.record.countAt(this.time);
    const moved = this.time !== before || arrivals !== this.arrivals;
    this.arrivals = arrivals;
    return moved;
  }

  /** Whether it shows the last of a run that is over. */
  get atEnd() {
    return this.ended && this.time >= this.record.until && this.arrivals >= this.record.length;
  }

  seek(time) {
    this.time = Math.min(Math.max(0, time), this.record.until);
    this.arrivals = this.record.countAt(this.time);
  }

  /** To the decision before or after. */
  step(by) {
    this.playing = false;
    const arrivals = Math.min(Math.max(0, this.arrivals + by), this.record.length);
    this.arrivals = arrivals;
    this.time = arrivals > 0 ? this.record.at[arrivals - 1] : 0;
  }

  play() {
    if (this.atEnd) this.seek(0);
    this.playing = true;
  }

  pause() {
    this.playing = false;
  }

  latest() {
    this.seek(this.record.until);
    this.playing = true;
  }
}
