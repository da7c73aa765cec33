// Looking into queues and the cache; sending, receiving, and retrying dead letters.
import { clipped, count, element, html, json, plain, post, render } from "/static/api.js";
import { bytes, date, lasting } from "/static/live.js";

const BEAT_MS = 30000;

function body(message, as) {
  const text = message.text ?? "";
  const raw = message.base64 === null ? new TextEncoder().encode(text) : Uint8Array.from(atob(message.base64), (each) => each.charCodeAt(0));
  let found = message.base64 === null ? text : new TextDecoder().decode(raw);
  if (as === "hex") found = [...raw.slice(0, 4096)].map((each) => each.toString(16).padStart(2, "0")).join(" ");
  if (as === "json") {
    try {
      found = JSON.stringify(JSON.parse(found), null, 1);
    } catch (error) {
      found = `not JSON: ${error.message}`;
    }
  }
  return found.split("\n").map(plain).join("\n");
}

export class Acting {
  constructor(live) {
    Object.assign(this, { live, what: "queue", queue: "", select: "", shown: null, error: "", as: "text", consumer: "", held: [], said: "", taken: [], letter: null, next: null });
    addEventListener("pagehide", () => this.#leave());
    setInterval(() => this.consumer && this.look(), BEAT_MS);
  }

  get allowed() {
    return !this.live.found?.read_only && !this.live.old;
  }

  #leave() {
    if (this.consumer) post(`${this.live.path}/settle`, { consumer: this.consumer, how: "close" }, { keepalive: true }).catch(() => {});
    this.consumer = "";
  }

  async #do(work) {
    try {
      this.said = "";
      await work();
    } catch (error) {
      this.said = error.message;
    }
    this.draw();
  }

  /** What a consumer of this page holds; asking keeps it open. */
  async look() {
    if (!this.consumer) return;
    try {
      this.held = (await json(`${this.live.path}/held`, { consumer: this.consumer })).messages;
    } catch (error) {
      Object.assign(this, { consumer: "", held: [], said: error.message });
    }
  }

  async browse(queue, what = "queue") {
    Object.assign(this, { queue, what, error: "", shown: null, letter: null });
    element("look").scrollIntoView({ block: "nearest" });
    await this.#ask(0);
  }

  async #ask(after) {
    const { what, queue, select } = this;
    try {
      if (what === "cache") {
        const found = await json(`${this.live.path}/cache`, { after, select, destination: queue });
        this.shown = { rows: after ? [...this.shown.rows, ...found.rows] : found.rows, next: found.next };
      } else this.shown = await json(`${this.live.path}/browse`, { queue, select });
      this.error = "";
    } catch (error) {
      Object.assign(this, { error: error.message, shown: null });
    }
    this.draw();
  }

  draw() {
    this.#look();
    this.#act();
  }

  #one(message, buttons) {
    const properties = Object.entries(message.properties).map(([name, value]) => `${name}=${value}`).join(", ");
    return html`<div class="letter"><div class="line">
      <button class="link" onClick=${() => this.live.choose(message.message)}>${plain(clipped(message.label || message.message, 40))}</button>
      <span class="faint">${plain(clipped(message.destination, 60))}, ${date(message.sent * 1e6)}, ${bytes(message.size)},${" "}
        priority ${message.priority}${message.redelivered ? ", redelivered" : ""}</span>${buttons}</div>
      ${properties && html`<p class="faint">${plain(clipped(properties, 400))}</p>`}<pre>${body(message, this.as)}</pre>
      ${message.size > 65536 && html`<p class="faint">the first 64 KiB of ${bytes(message.size)}</p>`}</div>`;
  }

  #look() {
    const { shown, what } = this;
    const set = (name) => (event) => Object.assign(this, { [name]: event.target.value });
    const dead = what === "queue" && /(^|\/)DLQ\./.test(this.queue);
    const retry = (message) => dead && this.allowed && html`<button onClick=${() => this.#retry([message])}>retry</button>`;
    const row = (each) => html`<tr><td><button class="link" onClick=${() => this.live.choose(each.message)}>${plain(clipped(each.label || each.message, 30))}</button></td>
      <td>${plain(clipped(each.destination, 40))}</td><td>${each.role}</td><td class="number">${bytes(each.size)}</td>
        <td>${each.expires === null ? "–" : date(each.expires * 1e6)}</td>
      <td>${plain(clipped(each.asked_by?.map((one) => this.live.called(one)).join(", ") || "nobody", 30))}</td></tr>`;
    render(html`<h2>Look</h2><p class="faint">Looking takes nothing: messages stay where they are, and are not flagged.</p>
      <div class="line"><select aria-label="look into" value=${what} onChange=${(event) => { this.what = event.target.value; this.shown = null; this.draw(); }}>
        <option value="queue">queue</option><option value="cache">cache</option></select>
        <input id="browse-of" type="search" aria-label="queue or destination" placeholder=${what === "cache" ? "destination, or all" : "queue"} value=${this.queue} onInput=${set("queue")}/>
        <input id="browse-select" type="search" aria-label="selector" placeholder=${what === "cache" ? "selector: role = 'carried' AND size > 1000" : "selector: level > 3"}
          value=${this.select} onInput=${set("select")}/>
        <button id="browse" onClick=${() => this.#ask(0)}>look</button>
        <select aria-label="body as" value=${this.as} onChange=${(event) => { this.as = event.target.value; this.draw(); }}><option value="text">text</option>
          <option value="json">JSON</option><option value="hex">hexadecimal</option></select></div>
      ${this.error && html`<p class="bad" role="alert">${plain(clipped(this.error, 400))}</p>`}
      ${shown?.messages && html`<p class="faint">${count(shown.messages.length)} messages${shown.age_s === null ? "; the queue's node has not answered yet" : `, as of ${lasting(shown.age_s)} ago`}</p>
        ${dead && this.allowed && shown.messages.length > 0 && html`<p>
          <button id="retry-all" onClick=${() => this.#retry(shown.messages)}>retry all</button>${this.letter && html` <span class="warn" role="alert">
          ${count(this.letter.length)} go to a topic: every subscriber gets them again. <button id="retry-anyway" onClick=${() => this.#retry(this.letter, true)}>retry anyway</button></span>`}</p>`}
        <div id="browsed">${shown.messages.map((each) => this.#one(each, retry(each)))}</div>`}
      ${shown?.rows && html`<div class="table"><table id="cache"><thead><tr><th>message</th><th>destination</th><th>role</th><th>size</th><th>expires</th>
        <th>asked for by</th></tr></thead><tbody>${shown.rows.map(row)}</tbody></table></div>
        ${shown.next && html`<button onClick=${() => this.#ask(shown.next)}>more</button>`}`}`, element("look"));
  }

  /** Moves letters back, one transaction each; those of topics only after a warning. */
  #retry(letters, warned = false) {
    const topics = letters.filter((each) => !each.destination.startsWith("queue/"));
    if (topics.length && !warned) {
      this.letter = letters;
      return this.draw();
    }
    this.letter = null;
    return this.#do(async () => {
      for (const each of letters) await post(`${this.live.path}/retry`, { queue: this.queue, message: each.message });
      await this.#ask(0);
    });
  }

  async #send(event) {
    event.preventDefault();
    const form = event.target;
    const value = (name) => form.elements[name].value.trim();
    const file = form.elements.file.files[0];
    await this.#do(async () => {
      const order = { to: value("kind") + value("to"), delivery_mode: value("mode"), priority: Number(value("priority")) };
      if (value("life")) order.time_to_live = Number(value("life"));
      if (value("label")) order.label = value("label");
      if (value("recipients")) order.recipients = value("recipients").split(/[\s,]+/);
      if (form.elements.receipt.checked) order.request_receipt = true;
      order.properties = Object.fromEntries(value("properties").split("\n").filter(Boolean).map((line) => {
        const [, name, type, text] = /^([^:=]+)(?::(\w+))?=(.*)$/.exec(line.trim()) ?? [null, line, null, null];
        if (text === null) throw new Error(`${line} must be NAME=VALUE, or with a type NAME:int=VALUE`);
        const guess = /^(true|false)$/.test(text) ? text === "true" : text !== "" && !/^0\d/.test(text) && Number.isFinite(Number(text)) ? Number(text) : text;
        return [name.trim(), type ? { type, value: type === "string" ? text : guess } : guess];
      }));
      if (file) {
        const read = new Uint8Array(await file.arrayBuffer());
        let binary = "";
        for (let at = 0; at < read.length; at += 32768) binary += String.fromCharCode(...read.subarray(at, at + 32768));
        order.base64 = btoa(binary);
      } else order.body = form.elements.body.value;
      const sent = await post(`${this.live.path}/send`, order);
      this.said = `stored, ${sent.neighbours ?? 0} neighbour${sent.neighbours === 1 ? "" : "s"}${sent.expires ? `, expires at ${date(sent.expires * 1e6)}` : ""}`;
      this.live.choose(sent.message);
    });
  }

  async #consume(event) {
    event.preventDefault();
    const form = event.target;
    const order = { from: form.elements.kind.value + form.elements.from.value.trim(), select: form.elements.select.value, mode: event.submitter?.value ?? "hold" };
    await this.#do(async () => {
      const found = await post(`${this.live.path}/consume`, order);
      if (found.consumer) this.consumer = found.consumer;
      else Object.assign(this, { taken: [...found.messages, ...this.taken].slice(0, 20), said: found.messages.length ? "" : "no message came within 5 s" });
      await this.look();
    });
  }

  #settle(how, number) {
    return this.#do(async () => {
      await post(`${this.live.path}/settle`, { consumer: this.consumer, number, how });
      if (how === "close") Object.assign(this, { consumer: "", held: [] });
      await this.look();
    });
  }

  #act() {
    const box = element("act");
    box.hidden = Boolean(this.live.found?.read_only);
    if (box.hidden) return;
    const kinds = html`<select name="kind" aria-label="kind"><option value="topic/">topic</option><option value="queue/">queue</option>
      <option value="channel/">channel</option></select>`;
    const acts = (each) => html`<button onClick=${() => this.#settle("acknowledge", each.number)}>acknowledge</button>
      <button onClick=${() => this.#settle("release", each.number)}>give back</button>`;
    render(html`<h2>Send</h2>
      <form id="send" class="form" onSubmit=${(event) => this.#send(event)}>
        <span>to</span><span class="line">${kinds}<input name="to" required aria-label="name" placeholder="village.roads"/></span>
        <span>body</span><textarea name="body" aria-label="body"></textarea>
        <span>or a file</span><input name="file" type="file" aria-label="file"/>
        <span>properties</span><textarea name="properties" aria-label="properties" placeholder="level=3, or level:short=3; one on each line"></textarea>
        <span>lifetime in s</span><input name="life" type="number" min="0" step="any" aria-label="lifetime in seconds" placeholder="the node's default"/>
        <span>label</span><input name="label" aria-label="label"/>
        <span>recipients</span><input name="recipients" aria-label="recipients" placeholder="ids of nodes; without any: all that want it"/>
        <span>options</span><span class="line"><select name="mode" aria-label="delivery mode"><option>PERSISTENT</option><option>NON_PERSISTENT</option></select>
          <label class="check">priority <input name="priority" type="number" min="0" max="9" value="4"/></label><label class="check">
            <input name="receipt" type="checkbox"/> receipt</label></span>
        <span></span><span><button id="send-button" disabled=${!this.allowed}>send</button></span>
      </form>
      ${this.said && html`<p id="said" role="status" class=${this.said.startsWith("stored") ? "" : "bad"}>${plain(clipped(this.said, 400))}</p>`}
      <h2>Receive</h2>
      <p class="faint">This subscribes: neighbours are asked for such messages from now on, and messages of a queue are not given to other programs while they are held here.
        Held messages come again, flagged, when they are given back or this page is closed. “Take one” receives one for good.</p>
      <form id="consume" class="form" onSubmit=${(event) => this.#consume(event)}>
        <span>from</span><span class="line">${kinds}<input name="from" required aria-label="from" placeholder="Alan"/></span>
        <span>selector</span><input name="select" aria-label="selector of messages" placeholder="level > 3"/>
        <span></span><span class="line"><button value="hold" disabled=${!this.allowed || this.consumer}>hold</button>
          <button value="take" disabled=${!this.allowed}>take one</button>
          ${this.consumer && html`<button type="button" id="close" onClick=${() => this.#settle("close")}>close, and give all back</button>`}</span>
      </form>
      ${this.consumer && html`<p>${count(this.held.length)} held (at most 20)</p>`}
      <div id="holding">${this.held.map((each) => this.#one(each, acts(each)))}</div>
        <div id="taken">${this.taken.map((each) => this.#one(each, html`<span>taken</span>`))}</div>`, box);
  }
}
