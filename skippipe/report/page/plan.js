// A plan: columns of the embedded data, and queries on them. No drawing here.
"use strict";

const KIND_NAMES = { F: "forward", L: "head and loss", B: "backward" };

class PlanData {
  constructor(data) {
    Object.assign(this, data);
    const tasks = data.tasks;
    this.count = tasks.node.length;
    this.start = Float64Array.from(tasks.start);
    this.end = Float64Array.from(tasks.end);
    this.stageOf = new Int32Array(this.nodes.length).fill(-1);
    this.stages.forEach((nodes, stage) => nodes.forEach((node) => { this.stageOf[node] = stage; }));
    this.lanes = this.nodes.map(() => []);
    this.chains = this.microbatches.map(() => []);
    this.named = new Map();
    for (let task = 0; task < this.count; task++) {
      this.lanes[tasks.node[task]].push(task);
      this.chains[tasks.microbatch[task]].push(task);
      this.named.set(this.name(task), task);
    }
    this.chains.forEach((chain) => chain.sort((a, b) => this.rank(a) - this.rank(b)));
    this.critical = new Set(data.path.filter((segment) => segment.part === "task").map((segment) => segment.task));
    this.held = this.lanes.map((lane) => this.heldOver(lane));
    this.busy = this.lanes.map((lane) => lane.reduce((sum, task) => sum + this.end[task] - this.start[task], 0));
  }

  kind(task) { return this.tasks.kind[task]; }
  node(task) { return this.tasks.node[task]; }
  microbatch(task) { return this.tasks.microbatch[task]; }
  name(task) { return `${this.microbatches[this.microbatch(task)].id}${this.kind(task)}${this.tasks.hop[task]}`; }

  // Position of a task in its microbatch's chain F0 .. L .. B0.
  rank(task) {
    const hops = this.microbatches[this.microbatch(task)].nodes.length, hop = this.tasks.hop[task];
    return this.kind(task) === "F" ? hop : this.kind(task) === "L" ? hops : 2 * hops - hop;
  }

  // [time, microbatches in memory from then on], by time.
  heldOver(lane) {
    const changes = [];
    for (const task of lane) {
      if (this.kind(task) === "F") changes.push([this.start[task], 1]);
      if (this.kind(task) === "B") changes.push([this.end[task], -1]);
    }
    changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const steps = [];
    let held = 0;
    for (const [time, change] of changes) {
      held += change;
      if (steps.length && steps[steps.length - 1][0] === time) steps[steps.length - 1][1] = held;
      else steps.push([time, held]);
    }
    return steps;
  }

  // Nodes on a microbatch's route, including its source.
  nodesOf(microbatchId) {
    const microbatch = this.microbatches.find((entry) => entry.id === microbatchId);
    return microbatch ? [microbatch.source, ...microbatch.nodes] : [];
  }

  // Messages of a microbatch: sender, receiver, departure, arrival.
  transfers(microbatch) {
    const { source, out_s: out, return_s: back } = this.microbatches[microbatch], chain = this.chains[microbatch], found = [];
    const add = (from, to, leave, arrive) => { if (from !== to) found.push({ from, to, leave, arrive }); };
    let at = source, leave = null;
    for (const task of chain) {
      const arrive = this.tasks.arrival[task];
      add(at, this.node(task), leave === null ? arrive - out : leave, arrive);
      at = this.node(task);
      leave = this.end[task];
    }
    if (at !== source) add(at, source, leave, leave + back);
    return found;
  }

  // The first task of a lane that ends after `time`.
  firstAfter(lane, time) {
    let low = 0, high = lane.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[lane[middle]] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  // Description of a task, line by line.
  describe(task) {
    const { tasks } = this, node = this.node(task), microbatch = this.microbatches[this.microbatch(task)];
    const waited = this.start[task] - tasks.arrival[task];
    const lines = [
      `${this.name(task)}: ${KIND_NAMES[this.kind(task)]} of microbatch ${microbatch.id}`,
      `stage ${this.stageOf[node]} on ${this.nodes[node]}${this.regionText(node)}`,
      `${seconds(this.start[task])} to ${seconds(this.end[task])}, ${seconds(this.end[task] - this.start[task])} long`,
      waited > 0 ? `input since ${seconds(tasks.arrival[task])}, waited ${seconds(waited)}: ${this.waits(task)}`
        : "did not wait",
      this.reason(task),
      tasks.slack[task] > 0 ? `slack ${seconds(tasks.slack[task])}`
        : "no slack: any delay lengthens the iteration",
    ];
    return lines;
  }

  waits(task) {
    const parts = [["busy", "node busy"], ["memory", "memory full"], ["order", "plan order"]];
    return parts.filter(([key]) => this.tasks[key][task] > 0)
      .map(([key, words]) => `${words} ${seconds(this.tasks[key][task])}`).join(", ");
  }

  reason(task) {
    const other = this.tasks.blocker[task], name = other < 0 ? "" : this.name(other);
    switch (this.tasks.reason[task]) {
      case "start": return "first task of its microbatch, not delayed";
      case "input": return `started when its input arrived, from ${name} on ${this.nodes[this.node(other)]}`;
      case "wave": return `started after the previous wave (${name})`;
      case "busy": return `started when its node finished ${name}`;
      case "memory": return `memory was full until ${name}`;
      default: return `its node stayed idle for ${name}, which precedes it in the plan`;
    }
  }

  regionText(node) { return this.region_of ? `, region ${this.region_of[node]}` : ""; }

  describeNode(node) {
    const share = this.iteration_s > 0 ? this.busy[node] / this.iteration_s : 0;
    return [
      this.nodes[node],
      this.stageOf[node] < 0 ? "serves no stage" : `stage ${this.stageOf[node]}${this.regionText(node)}`,
      `utilization ${(100 * share).toFixed(0)} %, ${this.lanes[node].length} tasks`,
      `memory for ${this.memory[node]} microbatches`,
    ];
  }
}

function seconds(value) { return `${value.toFixed(3)} s`; }
